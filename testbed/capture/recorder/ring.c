#include "ring.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLOT_BYTES 4096U /* of no effect on how many frames a block holds; the kernel wants a divisor of it */

static bool cut_frames(int fd, uint32_t snap_bytes)
{
    struct sock_filter take[] = {BPF_STMT(BPF_RET | BPF_K, snap_bytes)};
    struct sock_fprog program = {.len = 1, .filter = take};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

static bool map_ring(struct ring *ring, const struct ring_shape *shape)
{
    int version = TPACKET_V3;
    struct tpacket_req3 request = {.tp_block_size = shape->block_bytes,
                                   .tp_block_nr = shape->blocks,
                                   .tp_frame_size = SLOT_BYTES,
                                   .tp_frame_nr = shape->blocks * (shape->block_bytes / SLOT_BYTES),
                                   .tp_retire_blk_tov = RING_BLOCK_MS};
    if (setsockopt(ring->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(ring->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
        return false;
    size_t bytes = (size_t)shape->blocks * shape->block_bytes;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
    if (memory == MAP_FAILED)
        return false;
    ring->memory = memory;
    ring->blocks = shape->blocks;
    ring->block_bytes = shape->block_bytes;
    return true;
}

static bool bind_to_interface(int fd, const char *interface)
{
    /* Asked through the socket: its namespace is not this process's. */
    struct ifreq request = {0};
    strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    if (ioctl(fd, SIOCGIFINDEX, &request) != 0)
        return false;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address.sll_ifindex = request.ifr_ifindex;
    return bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
}

bool ring_open(struct ring *ring, int fd, const char *interface, const struct ring_shape *shape, char *error,
               size_t error_size)
{
    *ring = (struct ring){.fd = fd};
    const char *step = "cut frames";
    bool done = cut_frames(fd, shape->snap_bytes);
    if (done) {
        step = "get memory for frames";
        done = map_ring(ring, shape);
    }
    if (done) {
        /* Last: no frame arrives before there is room for it. */
        step = "bind";
        done = bind_to_interface(fd, interface);
    }
    if (!done) {
        snprintf(error, error_size, "interface %s: cannot %s: %s", interface, step, strerror(errno));
        ring_close(ring);
    }
    return done;
}

static struct tpacket_block_desc *descriptor(const struct ring *ring)
{
    return (struct tpacket_block_desc *)(void *)(ring->memory + (size_t)ring->next * ring->block_bytes);
}

struct tpacket_hdr_v1 *ring_block(const struct ring *ring)
{
    struct tpacket_hdr_v1 *block = &descriptor(ring)->hdr.bh1;
    return __atomic_load_n(&block->block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER ? block : NULL;
}

const struct tpacket3_hdr *ring_first(const struct tpacket_hdr_v1 *block)
{
    const uint8_t *start = (const uint8_t *)block - offsetof(struct tpacket_block_desc, hdr);
    return (const struct tpacket3_hdr *)(const void *)(start + block->offset_to_first_pkt);
}

const struct tpacket3_hdr *ring_after(const struct tpacket3_hdr *frame)
{
    return (const struct tpacket3_hdr *)(const void *)((const uint8_t *)frame + frame->tp_next_offset);
}

void ring_release(struct ring *ring, struct tpacket_hdr_v1 *block)
{
    ring->taken += block->num_pkts;
    __atomic_store_n(&block->block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    ring->next = ring->next + 1 == ring->blocks ? 0 : ring->next + 1;
}

void ring_count(struct ring *ring)
{
    struct tpacket_stats_v3 statistics = {0}; /* the kernel forgets them when they are read */
    socklen_t size = sizeof statistics;
    if (getsockopt(ring->fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) != 0)
        return;
    ring->arrived += statistics.tp_packets;
    ring->dropped += statistics.tp_drops;
}

void ring_close(struct ring *ring)
{
    if (ring->memory)
        munmap(ring->memory, (size_t)ring->blocks * ring->block_bytes);
    if (ring->fd >= 0)
        close(ring->fd);
    *ring = (struct ring){.fd = -1};
}
