#include "port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

/* Seven slots to a block of 16 pages; each has room for the kernel's header and a 9,018-byte frame (with VLAN tag). */
#define BLOCK_BYTES 65536U
#define SLOTS_PER_BLOCK 7U
#define SLOT_BYTES (BLOCK_BYTES / SLOTS_PER_BLOCK / TPACKET_ALIGNMENT * TPACKET_ALIGNMENT)
#define VLAN_BYTES 4U
#define ADDRESSES_BYTES 12U
#define SEND_BUFFER_BYTES (64 << 20)

static struct tpacket2_hdr *slot_header(const struct port *port, uint32_t slot)
{
    size_t block = slot / SLOTS_PER_BLOCK, in_block = slot % SLOTS_PER_BLOCK;
    return (struct tpacket2_hdr *)(void *)(port->ring + block * BLOCK_BYTES + in_block * SLOT_BYTES);
}

static bool set_option(int fd, int name, int value)
{
    return setsockopt(fd, SOL_PACKET, name, &value, sizeof value) == 0;
}

bool port_set_up(struct port *port, bool up)
{
    struct ifreq request = {0};
    memcpy(request.ifr_name, port->name, IFNAMSIZ);
    if (ioctl(port->fd, SIOCGIFFLAGS, &request) != 0)
        return false;
    /* No address lives here: answering or asking ARP on it could only disturb. */
    request.ifr_flags = (short)((request.ifr_flags & ~IFF_UP) | IFF_NOARP | (up ? IFF_UP : 0));
    if (ioctl(port->fd, SIOCSIFFLAGS, &request) != 0)
        return false;
    int pending;
    socklen_t size = sizeof pending; /* going down leaves an error on the socket: collect it */
    return getsockopt(port->fd, SOL_SOCKET, SO_ERROR, &pending, &size) == 0;
}

static bool map_ring(struct port *port, uint32_t slots)
{
    uint32_t blocks = (slots + SLOTS_PER_BLOCK - 1) / SLOTS_PER_BLOCK;
    struct tpacket_req ring = {.tp_block_size = BLOCK_BYTES,
                               .tp_block_nr = blocks,
                               .tp_frame_size = SLOT_BYTES,
                               .tp_frame_nr = blocks * SLOTS_PER_BLOCK};
    if (setsockopt(port->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0)
        return false;
    size_t bytes = (size_t)blocks * BLOCK_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, port->fd, 0);
    if (memory == MAP_FAILED)
        return false;
    port->ring = memory;
    port->ring_bytes = bytes;
    port->slots = ring.tp_frame_nr;
    port->holds = calloc(port->slots, sizeof *port->holds);
    return port->holds != NULL;
}

static bool bind_to_interface(struct port *port)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address.sll_ifindex = (int)if_nametoindex(port->name);
    return address.sll_ifindex != 0 && bind(port->fd, (struct sockaddr *)&address, sizeof address) == 0;
}

bool port_open(struct port *port, const char *interface, uint32_t slots, char *error, size_t error_size)
{
    *port = (struct port){.fd = -1};
    strncpy(port->name, interface, IFNAMSIZ - 1);
    const char *step = "open a packet socket";
    /* Protocol 0: nothing arrives before the ring is there and the socket is bound. */
    port->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    bool done = port->fd >= 0;
    if (done) {
        step = "set packet socket options";
        int send_buffer = SEND_BUFFER_BYTES;
        done = set_option(port->fd, PACKET_VERSION, TPACKET_V2) && set_option(port->fd, PACKET_QDISC_BYPASS, 1) &&
               set_option(port->fd, PACKET_IGNORE_OUTGOING, 1) &&
               setsockopt(port->fd, SOL_SOCKET, SO_SNDBUFFORCE, &send_buffer, sizeof send_buffer) == 0;
    }
    if (done) {
        step = "get memory for the packet ring";
        done = map_ring(port, slots);
    }
    if (done) {
        step = "bind";
        done = bind_to_interface(port);
    }
    if (done) {
        step = "set it up";
        done = port_set_up(port, true);
    }
    if (!done) {
        snprintf(error, error_size, "interface %s: cannot %s: %s", interface, step, strerror(errno));
        port_close(port);
    }
    return done;
}

void port_close(struct port *port)
{
    if (port->ring)
        munmap(port->ring, port->ring_bytes);
    free(port->holds);
    if (port->fd >= 0)
        close(port->fd);
    *port = (struct port){.fd = -1};
}

/* The kernel takes a VLAN tag out of the frame. A link must deliver what it got, so it goes back in; there is room
 * in front of the frame. */
static uint8_t *put_vlan_tag_back(const struct tpacket2_hdr *header, uint8_t *frame)
{
    uint16_t protocol = header->tp_status & TP_STATUS_VLAN_TPID_VALID ? header->tp_vlan_tpid : ETH_P_8021Q;
    uint16_t tag[2] = {htons(protocol), htons(header->tp_vlan_tci)};
    memmove(frame - VLAN_BYTES, frame, ADDRESSES_BYTES);
    memcpy(frame - VLAN_BYTES + ADDRESSES_BYTES, tag, VLAN_BYTES);
    return frame - VLAN_BYTES;
}

bool port_read(struct port *port, struct arrival *arrival)
{
    /* A slot that is still held keeps its status: without the second test it would be read again. */
    struct tpacket2_hdr *header = slot_header(port, port->next);
    if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) || port->holds[port->next])
        return false;
    *arrival = (struct arrival){
        .stamp_ns = (int64_t)header->tp_sec * NS_PER_S + header->tp_nsec,
        .data = (uint8_t *)header + header->tp_mac,
        .bytes = header->tp_len,
        .slot = port->next,
        .whole = header->tp_snaplen == header->tp_len,
    };
    if (arrival->whole && header->tp_status & TP_STATUS_VLAN_VALID) {
        arrival->data = put_vlan_tag_back(header, arrival->data);
        arrival->bytes += VLAN_BYTES;
    }
    port->holds[port->next] = true;
    port->next = port->next + 1 == port->slots ? 0 : port->next + 1;
    return true;
}

void port_give_back(struct port *port, uint32_t slot)
{
    port->holds[slot] = false;
    __atomic_store_n(&slot_header(port, slot)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
}

uint64_t port_take_overflows(struct port *port)
{
    struct tpacket_stats statistics = {0};
    socklen_t size = sizeof statistics;
    if (getsockopt(port->fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) != 0)
        return 0;
    return statistics.tp_drops;
}

int port_send(struct port *port, const struct held_queue *queue, unsigned count)
{
    struct iovec vectors[PORT_BATCH];
    struct mmsghdr messages[PORT_BATCH];
    memset(messages, 0, count * sizeof messages[0]);
    for (unsigned i = 0; i < count; i++) {
        const struct frame *frame = held_queue_at(queue, i)->frame;
        vectors[i] = (struct iovec){frame->data, frame->bytes};
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    return sendmmsg(port->fd, messages, count, MSG_DONTWAIT);
}
