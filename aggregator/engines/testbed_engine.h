/*
 * The C ABI of aggregator engines, version 2. An engine is a shared library that exports every function below; the edge
 * loads it by path (`--engine ./mine.so`). It mirrors aggregator/engine.py call for call: the rules are written there
 * and in docs/aggregator.md, and `python -m aggregator.conformance --engine PATH` checks that an engine keeps them.
 *
 * All calls come from one thread. Arrays belong to the caller and hold for the call only. Nothing may read a clock.
 * Times are nanoseconds; `now_ns` never decreases from call to call.
 */
#ifndef TESTBED_ENGINE_H
#define TESTBED_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_ABI_VERSION 2u
#define TB_INDEX_WAYS 16u
#define TB_NEVER INT64_MAX
#define TB_NO_CAP UINT64_MAX

#if defined(__GNUC__)
#define TB_EXPORT __attribute__((visibility("default")))
#else
#define TB_EXPORT
#endif

/* What `tb_submit` did with one contribution. After either `TB_BYPASSED_...` the caller sends it on unsummed. */
enum tb_verdict {
    TB_ADDED = 0,
    TB_BYPASSED_COLLISION = 1,
    TB_BYPASSED_LATE = 2,
    TB_DUPLICATE = 3,
    TB_DROPPED_LATE = 4,
    TB_REFUSED_EPOCH = 5,
    TB_REFUSED_SOURCE = 6,
    TB_REFUSED_LENGTH = 7
};

/* Why a result was sent; the numbers are those of the wire format. */
enum tb_reason { TB_COMPLETE = 1, TB_TIMEOUT = 2, TB_COLLISION = 3 };

enum tb_status {
    TB_OK = 0,
    TB_BAD_CONFIG = 1,     /* beyond the engine's capabilities */
    TB_NO_MEMORY = 2,
    TB_ANNOUNCED = 3,      /* the round is announced already */
    TB_NOT_ANNOUNCED = 4,  /* the round is not announced */
    TB_TOO_MANY_ROUNDS = 5 /* more than `max_rounds` side by side */
};

enum tb_number_format { TB_FIXED_POINT_32 = 0, TB_FLOAT_32 = 1 };

/* Headers of a batch as a structure of arrays; row i belongs to payload row i. `tb_submit` reads the key (job, epoch,
 * round, shard, chunk), `value_count` and `source` and writes `verdict`; `tb_poll` writes all but these last two. */
struct tb_headers {
    uint32_t *job;
    uint32_t *epoch;
    uint32_t *round;
    uint16_t *shard;
    uint32_t *chunk;
    uint16_t *value_count;
    uint8_t *source;
    uint8_t *verdict;
    uint8_t *reason;
    uint8_t *contributors;
    uint64_t *bitmap;
};

struct tb_config {
    uint64_t slots;
    uint64_t index_entries; /* a power of two, >= 4 * slots and >= TB_INDEX_WAYS */
    uint64_t hash_key;
    uint64_t slots_per_source; /* most open slots that one contributor's packets may have taken; >= 1, TB_NO_CAP */
    int64_t reordering_ns;
    uint32_t values_per_chunk;
    uint32_t max_batch; /* results that can wait for `tb_poll`, outside the slots */
    uint8_t number_format;
    uint8_t drop_late; /* 0: late contributions bypass; 1: they are dropped */
    uint8_t evict_old; /* 0: the newcomer bypasses an empty pool; 1: the oldest slot goes out */
    uint8_t zero[5];
};

struct tb_capabilities {
    char name[32];
    char kind[16];
    uint64_t max_slots;
    uint32_t max_values_per_chunk;
    uint32_t max_batch;
    uint32_t max_rounds;
    uint32_t number_formats;     /* bit i: number format i */
    uint32_t collision_policies; /* bit 0: bypass-new, bit 1: evict-old */
    uint32_t max_contributors;
};

struct tb_counters {
    uint64_t contributions;
    uint64_t added;
    uint64_t complete;
    uint64_t timeout;
    uint64_t collision;
    uint64_t bypassed_pool;
    uint64_t bypassed_index;
    uint64_t bypassed_source;
    uint64_t late;
    uint64_t duplicate;
    uint64_t refused_epoch;
    uint64_t refused_source;
    uint64_t refused_length;
    uint64_t abandoned;
    uint64_t longest_wait_ns; /* of a complete key, for its last contribution; the total is the largest, not the sum */
};

struct tb_stats {
    struct tb_counters counters;
    uint64_t slots_in_use;
    uint64_t high_water_slots;
};

struct tb_engine; /* the engine's own */

TB_EXPORT uint32_t tb_abi_version(void);
TB_EXPORT void tb_capabilities(struct tb_capabilities *out);

/* Returns TB_OK and an engine, or TB_BAD_CONFIG or TB_NO_MEMORY and nothing to close. */
TB_EXPORT int tb_open(const struct tb_config *config, struct tb_engine **out);
TB_EXPORT void tb_close(struct tb_engine *engine);
TB_EXPORT void tb_reset(struct tb_engine *engine);

/* `expected` is not 0 and `deadline_ns` is positive: the caller sees to it. */
TB_EXPORT int tb_set_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round, uint64_t expected,
                            int64_t deadline_ns);
TB_EXPORT int tb_drop_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round,
                             struct tb_counters *out);

/* Payload row i starts at payloads + i * stride_values. Returns how many contributions were accepted. */
TB_EXPORT size_t tb_submit(struct tb_engine *engine, const struct tb_headers *headers, const int32_t *payloads,
                           size_t stride_values, size_t count, int64_t now_ns);
/* Returns how many results were written, at most `capacity`. */
TB_EXPORT size_t tb_poll(struct tb_engine *engine, const struct tb_headers *headers, int32_t *payloads,
                         size_t stride_values, size_t capacity, int64_t now_ns);

/* TB_NEVER when no slot is open. */
TB_EXPORT int64_t tb_next_deadline_ns(const struct tb_engine *engine);
TB_EXPORT void tb_flush(struct tb_engine *engine, int64_t now_ns);
TB_EXPORT void tb_stats(const struct tb_engine *engine, struct tb_stats *out);
/* The most slots in use since the last call (or `tb_open`); counts on from those in use now. */
TB_EXPORT uint64_t tb_take_high_water(struct tb_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
