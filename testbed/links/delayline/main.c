/* delayline: owns one end of each link's two veth pairs, in a network namespace of its own, and carries frames
 * between them with the delay, rate, queue and impairments that were asked for. See docs/links.md.
 *
 * Usage: delayline CONTROL-FD PARENT-PID. The first is a Unix SEQPACKET socket; control.h says what it understands.
 * The program ends when told to, when the socket closes, or when the parent is gone: whichever comes first. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "emulator.h"
#include "interfaces.h"

static int fail(const char *what)
{
    fprintf(stderr, "delayline: %s: %s\n", what, strerror(errno));
    return 1;
}

/* Each link takes two sockets. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void obey_until_stopped(struct emulator *emulator, int parent)
{
    struct pollfd sources[] = {{.fd = emulator->control, .events = POLLIN}, {.fd = parent, .events = POLLIN}};
    char text[COMMAND_BYTES];
    for (;;) {
        if (poll(sources, 2, -1) < 0 && errno != EINTR)
            return;
        if (sources[1].revents)
            return;
        if (!sources[0].revents)
            continue;
        ssize_t length = recv(emulator->control, text, sizeof text, 0);
        if (length <= 0 || !emulator_obey(emulator, text, (size_t)length))
            return;
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: delayline CONTROL-FD PARENT-PID (testbed starts it)\n");
        return 2;
    }
    int control = atoi(argv[1]);
    pid_t parent_pid = (pid_t)atoi(argv[2]);
    /* A copy of the socket in a stray child would keep it open: watch the parent itself as well. */
    int parent = (int)syscall(SYS_pidfd_open, parent_pid, 0);
    if (parent < 0 || getppid() != parent_pid)
        return fail("the parent is gone");
    raise_file_limit();
    if (!interfaces_own_namespace())
        return fail("cannot make a network namespace");
    struct emulator emulator;
    if (!emulator_init(&emulator, control))
        return fail("cannot start");
    emulator_greet(&emulator);
    obey_until_stopped(&emulator, parent);
    emulator_stop(&emulator);
    return 0;
}
