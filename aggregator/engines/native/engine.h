/* The state of engine `native`. One mapping holds all of it; nothing is allocated after `tb_open`. */
#ifndef TESTBED_NATIVE_ENGINE_H
#define TESTBED_NATIVE_ENGINE_H

#include <stdbool.h>

#include "../testbed_engine.h"
#include "sum.h"

#define MAX_ROUNDS 256u
#define MAX_CONTRIBUTORS 64u
#define NO_SLOT UINT32_MAX

struct clique {
    bool announced;
    uint32_t job, epoch, round;
    uint64_t expected;
    int64_t deadline_ns;
    struct tb_counters counts;
};

/* What the index knows of one key. `seen`: contributors that must not come again; `in_sum`: those in the slot's sum.
 * `until_ns`: when an entry without a slot ends; 0 while it has one. */
struct entry {
    uint64_t seen, in_sum;
    int64_t until_ns;
    uint32_t chunk;
    uint32_t slot;
    uint16_t clique;
    uint16_t shard;
    uint16_t value_count;
    bool closed;
};

/* A result that waits for `tb_poll`, its sum in staging row `row`. */
struct staged {
    uint64_t bitmap;
    uint32_t job, epoch, round, chunk;
    uint32_t row;
    uint16_t shard, value_count;
    uint8_t reason;
};

struct tb_engine {
    size_t mapped_bytes;
    struct tb_config config;
    size_t row_values; /* from row to row of `pool` and `staging`: whole cache lines */
    uint64_t sets;
    tb_sum *sum;

    uint32_t *tags; /* 0: the way is free */
    struct entry *entries;

    int32_t *pool;
    int64_t *deadlines;  /* by slot; TB_NEVER: free */
    int64_t *opened_ns;  /* by slot */
    uint64_t *occupants; /* by slot: its entry */
    uint8_t *openers;    /* by slot: the contributor that opened it */
    uint32_t *free_slots, *due;
    uint64_t free_count, used_slots, in_use, high_water;
    uint64_t opened[MAX_CONTRIBUTORS]; /* slots in use, by the contributor that opened them */
    int64_t earliest_ns;               /* no open slot's deadline is earlier */

    int32_t *staging;
    struct staged *staged;
    uint32_t *free_rows;
    uint32_t free_row_count, staged_head, staged_count;

    struct tb_counters past; /* of rounds that were dropped, and of none */
    uint32_t last_clique;
    struct clique cliques[MAX_ROUNDS];
};

#endif
