/* The edge's way out: headers and checksums written, and datagrams sent, by the batch. */
#ifndef TESTBED_SEND_H
#define TESTBED_SEND_H

#include <stddef.h>
#include <stdint.h>

#include "../engines/testbed_engine.h"

/* What the header of a datagram shall say, and where it goes. The same record as RECORD in aggregator/outgoing.py. */
struct tb_outgoing {
    uint64_t bitmap;
    uint32_t job;
    uint32_t epoch;
    uint32_t round;
    uint32_t chunk;
    uint32_t number;
    uint32_t trailing_edge;
    uint32_t destination; /* IPv4, in network byte order */
    uint32_t size;        /* of the datagram, in bytes */
    uint16_t shard;
    uint16_t value_count;
    uint8_t kind;
    uint8_t reason;
    uint8_t source;
    uint8_t contributors;
};

_Static_assert(sizeof(struct tb_outgoing) == 48, "aggregator/outgoing.py maps this record");

#define TB_SEND_BATCH 64

/* Write header and checksum of `count` datagrams before the payloads that are in their rows already, and set their
 * sizes. Each payload must fit its row of `stride` bytes. */
TB_EXPORT void tb_seal(uint8_t *rows, size_t stride, struct tb_outgoing *records, size_t count);

/* Send up to TB_SEND_BATCH datagrams without waiting. Returns how many the socket took, or -1 with errno; a socket or
 * interface that is full for now takes none. */
TB_EXPORT int tb_send(int fd, uint16_t port, uint8_t *rows, size_t stride, const struct tb_outgoing *records,
                      size_t count);

#endif
