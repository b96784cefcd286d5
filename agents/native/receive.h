/* A host's way in: what its edge and the hosts of other islands send, checked, and added to the sums of the round.
 * agents/receiving.py wraps it. All memory belongs to the caller, who may look at it between two calls. */
#ifndef TESTBED_HOST_RECEIVE_H
#define TESTBED_HOST_RECEIVE_H

#include "../../aggregator/wire/native/export.h"
#include "../../aggregator/wire/native/parse.h"
#include "stamps.h"

#define TB_HOST_BATCH 64u
#define TB_HOST_BATCH_BYTES (128u << 10)

/* What is counted; `Counts` in agents/receiving.py says what each means, and has the same order. */
enum tb_host_count {
    TB_COUNT_COMPLETE,
    TB_COUNT_PARTIAL,
    TB_COUNT_BYPASSED,
    TB_COUNT_FETCHED,
    TB_COUNT_DUPLICATES,
    TB_COUNT_OVERLAPS,
    TB_COUNT_LATE,
    TB_COUNT_REFUSED,
    TB_COUNT_REPAIRED,
    TB_HOST_COUNTS
};

/* Which of the packets that are merged the caller wants to be told of. */
enum tb_host_tell { TB_TELL_NONE, TB_TELL_GIVEN_UP, TB_TELL_ALL };

/* Why the caller is told of a packet: its place in the edge's stream is not simply the next one; it was merged. */
enum tb_host_told { TB_TOLD_PLACE = 1, TB_TOLD_MERGED = 2 };

/* A host of another island, which may be asked for what that has sent; the address in network byte order. */
struct tb_peer {
    uint32_t address;
    uint32_t island;
};

struct tb_host {
    const uint8_t *key; /* of the packets' tags; NULL: they are not looked at */
    const struct tb_peer *peers;
    uint8_t *rows;    /* TB_HOST_BATCH rows of `stride` bytes; what is longer is refused */
    uint64_t *counts; /* by tb_host_count */
    /* What the last batch has to tell: headers of TB_HOST_BATCH packets, and why. */
    uint8_t *told;
    uint8_t *told_why;
    /* The shard's part of the round's sums and bitmaps, which others may look at, and bitmaps that nobody else changes;
     * NULL: no round is at hand. `waits_ns`: how long each packet that was merged had waited at the socket; there is room
     * for one for each contribution that is expected. */
    int32_t *summed;
    uint64_t *bitmaps;
    uint64_t *have;
    int64_t *waits_ns;
    uint64_t expected; /* bitmap of the contributors that shall reach every chunk */
    uint64_t stride;
    struct tb_stamps stamps;
    int64_t last_arrival_ns; /* of what was merged last */
    uint32_t job;
    uint32_t island;
    uint32_t shard;
    uint32_t number_format;
    uint32_t values; /* of the shard */
    uint32_t values_per_chunk;
    uint32_t peer_count;
    uint32_t edge_address; /* in network byte order */
    uint32_t epoch;
    uint32_t round;
    uint32_t missing; /* chunks that lack contributors */
    uint32_t merges;
    uint32_t tell;
    uint32_t told_count;
    /* Packets of `stream` that come each in its turn, the first being `next`, and let go of more and more before them, only
     * move these on; `turns` of them have come since the caller looked. */
    uint32_t stream;
    uint32_t next;
    uint32_t trailing_edge;
    uint32_t turns;
    uint32_t unsure; /* a packet of this batch was not in its turn: until the caller has dealt with it, whose it is is open */
    int32_t fd;
};

/* How many datagrams one call of the kernel takes; more large ones would leave the cache before they are added. */
static inline uint32_t tb_host_batch(const struct tb_host *host) {
    uint64_t fit = TB_HOST_BATCH_BYTES / host->stride;
    return fit < 1 ? 1 : fit < TB_HOST_BATCH ? (uint32_t)fit : TB_HOST_BATCH;
}

/* Take what comes until `until_ns`, until another descriptor is readable (returns 1), or until there is something to
 * tell or the last chunk of the round is complete (returns 0). At least what waits is taken, a batch at most. Minus an
 * errno if the socket fails. */
TB_EXPORT int tb_host_wait(struct tb_host *host, int other_fd, int64_t until_ns);

/* The parts of it, for tests. A new batch begins: what was told has been looked at. */
TB_EXPORT void tb_host_begin_batch(struct tb_host *host);

/* Take one datagram of the batch; it came from `sender` (network byte order) at `arrival_ns`. */
TB_EXPORT void tb_host_take(struct tb_host *host, const uint8_t *datagram, size_t size, uint32_t sender, int64_t arrival_ns);

#endif
