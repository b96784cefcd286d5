/* The fields of packets, byte by byte as in docs/wire-format.md. */
#ifndef TESTBED_PACKET_H
#define TESTBED_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define HEADER_BYTES 64u
#define VALUE_BYTES 4u
#define FRAME_OVERHEAD_BYTES 42u /* Ethernet, IPv4 and UDP */
#define MAGIC 0x5442u
#define VERSION 1u
#define FLAG_BYPASSED 1u
#define FLAG_RETRANSMITTED 2u
#define RESULT_PORT 47001

enum tb_kind { CONTRIBUTION = 1, RESULT, PROBE, NACK, HEARTBEAT, GONE, FETCH };

enum {
    FLAGS_AT = 4,
    EPOCH_AT = 12,
    ROUND_AT = 16,
    NUMBER_AT = 28,
    TRAILING_EDGE_AT = 32,
    BITMAP_AT = 40,
    STREAM_AT = 56,
    CHECKSUM_AT = 60
};

struct tb_header {
    uint8_t kind, flags, reason, source, contributors, number_format;
    uint16_t shard, value_count;
    uint32_t job, epoch, round, chunk, number, stream;
    uint64_t bitmap;
};

static inline uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
static inline uint32_t get32(const uint8_t *at) { return (uint32_t)get16(at) << 16 | get16(at + 2); }
static inline uint64_t get64(const uint8_t *at) { return (uint64_t)get32(at) << 32 | get32(at + 4); }

static inline void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value);
}

static inline void put64(uint8_t *at, uint64_t value) {
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

/* Write all of a header but the tag and the checksum. */
static inline void put_header(uint8_t *at, const struct tb_header *header) {
    put16(at, MAGIC);
    at[2] = VERSION;
    at[3] = header->kind;
    at[FLAGS_AT] = header->flags;
    at[5] = header->reason;
    at[6] = header->source;
    at[7] = header->contributors;
    put32(at + 8, header->job);
    put32(at + EPOCH_AT, header->epoch);
    put32(at + ROUND_AT, header->round);
    put16(at + 20, header->shard);
    put16(at + 22, header->value_count);
    put32(at + 24, header->chunk);
    put32(at + NUMBER_AT, header->number);
    put32(at + TRAILING_EDGE_AT, 0);
    put32(at + 36, (uint32_t)header->number_format << 24);
    put64(at + BITMAP_AT, header->bitmap);
    put64(at + 48, 0);
    put32(at + STREAM_AT, header->stream);
}

#endif
