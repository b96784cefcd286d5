/* A packet socket's ring: the kernel fills blocks with frames, in and out, and hands over one block after the other. */
#ifndef TESTBED_CAPTURE_RING_H
#define TESTBED_CAPTURE_RING_H

#include <linux/if_packet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block that is not full is handed over after this time. */
#define RING_BLOCK_MS 40

struct ring {
    int fd; /* -1: not open */
    uint8_t *memory;
    uint32_t block_bytes, blocks, next;
    uint64_t taken;   /* frames handed over */
    uint64_t arrived; /* frames that the kernel saw, dropped ones included */
    uint64_t dropped; /* frames for which it had no room */
};

/* How large a ring is, and what it keeps of each frame. Blocks are whole pages. */
struct ring_shape {
    uint32_t block_bytes, blocks, snap_bytes;
};

/* Make the ring of an unbound packet socket and bind it to an interface of the socket's own namespace. False: `error`
 * says why. */
bool ring_open(struct ring *ring, int fd, const char *interface, const struct ring_shape *shape, char *error,
               size_t error_size);

/* The next block that the kernel has handed over; NULL: none. */
struct tpacket_hdr_v1 *ring_block(const struct ring *ring);

/* The first frame of a block, and the one after `frame`. */
const struct tpacket3_hdr *ring_first(const struct tpacket_hdr_v1 *block);
const struct tpacket3_hdr *ring_after(const struct tpacket3_hdr *frame);

/* Give the block back. */
void ring_release(struct ring *ring, struct tpacket_hdr_v1 *block);

/* Bring the counts of arrived and dropped frames up to date. */
void ring_count(struct ring *ring);

void ring_close(struct ring *ring);

#endif
