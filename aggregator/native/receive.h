/* The edge's way in: datagrams from a socket in batches, checked as aggregator/admission.py checks them. */
#ifndef TESTBED_RECEIVE_H
#define TESTBED_RECEIVE_H

#include <stddef.h>
#include <stdint.h>

#include "../engines/testbed_engine.h"
#include "../wire/native/parse.h"

/* One admitted flow; addresses in network byte order. */
struct tb_flow {
    uint32_t group;
    uint32_t source;
    uint8_t contributor;
    uint8_t zero[3];
};

struct tb_shape {
    uint32_t job;
    uint32_t values_per_chunk;
    uint32_t shards;
    uint32_t flow_count;
    uint32_t number_format;
    uint32_t zero;
    const uint8_t *key; /* of the packets' tags; NULL: they are not looked at */
    const uint32_t *shard_values;
    const struct tb_flow *flows;
};

struct tb_probe {
    uint64_t sent_ns;
    int64_t arrival_ns;
    uint32_t probe;
    uint32_t group; /* as the packet says it: the first byte of the address is the highest */
};

#define TB_RECEIVE_BATCH 64
#define TB_RECEIVE_BYTES (128u << 10)

/* How many datagrams one call takes, in rows of `stride` bytes. With large ones fewer than TB_RECEIVE_BATCH: they would
 * leave the cache before they are added. `receiver.batch_of` is the same. */
static inline uint32_t tb_receive_batch(size_t stride) {
    size_t fit = TB_RECEIVE_BYTES / stride;
    return fit < 1 ? 1 : fit < TB_RECEIVE_BATCH ? (uint32_t)fit : TB_RECEIVE_BATCH;
}

/* Take up to a batch of datagrams of a non-blocking socket. Contributions end up in the first rows (`rows`, of
 * `stride` bytes each, in TB_RECEIVE_BATCH rows), in order of arrival, with headers and sizes; returns how many. Probes
 * go to `probes` and are counted in `probe_count`. `refused[reason]` is counted up. `taken`: datagrams in all; fewer
 * than the batch means that the socket is empty. Returns -1 with errno on failure. */
TB_EXPORT int tb_receive(int fd, const struct tb_shape *shape, uint8_t *rows, size_t stride,
                         const struct tb_headers *headers, uint32_t *sizes, struct tb_probe *probes,
                         uint32_t *probe_count, uint64_t *refused, uint32_t *taken);

/* The checks alone, for tests. Returns a tb_refusal; `group` and `source` in network byte order. */
TB_EXPORT int tb_check(const struct tb_shape *shape, const uint8_t *datagram, size_t size, uint32_t group,
                       uint32_t source);

#endif
