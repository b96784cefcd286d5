#include "interfaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Interfaces without addresses still would join multicast groups and solicit neighbours. */
static bool disable_ipv6(void)
{
    int fd = open("/proc/sys/net/ipv6/conf/default/disable_ipv6", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT; /* a kernel without IPv6 */
    bool done = write(fd, "1", 1) == 1;
    close(fd);
    return done;
}

bool interfaces_own_namespace(void)
{
    return unshare(CLONE_NEWNET) == 0 && disable_ipv6();
}

void interfaces_each_drops(void (*tell)(void *context, const char *interface, uint64_t drops), void *context)
{
    FILE *table = fopen("/proc/net/dev", "re");
    char line[512], interface[IFNAMSIZ];
    unsigned long long drops;
    while (table && fgets(line, sizeof line, table))
        /* name: received bytes, packets, errors, drops ...; the two lines of headings do not match */
        if (sscanf(line, " %15[^: ]: %*u %*u %*u %llu", interface, &drops) == 2)
            tell(context, interface, drops);
    if (table)
        fclose(table);
}

bool interfaces_remove(void)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg link;
        struct rtattr attribute;
        unsigned group;
    } request = {
        .header = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_DELLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        .attribute = {.rta_len = RTA_LENGTH(sizeof(unsigned)), .rta_type = IFLA_GROUP},
        .group = INTERFACE_GROUP,
    };
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
    } answer;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return false;
    bool done = send(fd, &request, sizeof request, 0) == sizeof request &&
                recv(fd, &answer, sizeof answer, 0) >= (ssize_t)sizeof answer &&
                answer.header.nlmsg_type == NLMSG_ERROR && answer.error.error == 0;
    close(fd);
    return done;
}
