/* The edge's event loop in C, for engines behind the C ABI: aggregator/edge.py and results.py say what it does, and run
 * the same in Python for other engines. All memory belongs to the caller, who may look at it between two calls. */
#ifndef TESTBED_EDGE_H
#define TESTBED_EDGE_H

#include "repair.h"

/* How many slots are in use over time: aggregator/occupancy.py says what a sample is. */
struct tb_occupancy {
    int64_t *times_ns;
    uint32_t *slots;
    int64_t interval_ns;
    int64_t next_ns;
    uint32_t capacity;
    uint32_t count;
    uint32_t peak; /* the most since the last sample */
    uint32_t last; /* what the last sample holds */
};

struct tb_edge {
    const struct tb_shape *shape;
    uint8_t *rows;
    uint64_t stride;
    const struct tb_headers *in;
    uint32_t *sizes;
    struct tb_probe *probes;
    uint32_t *probe_count;
    uint64_t *refused;
    uint32_t *taken;
    struct tb_results *results;
    struct tb_repairs *repairs;
    const struct tb_headers *out; /* of TB_RECEIVE_BATCH rows */
    struct tb_occupancy *occupancy;
    struct tb_engine *engine;
    size_t (*submit)(struct tb_engine *, const struct tb_headers *, const int32_t *, size_t, size_t, int64_t);
    size_t (*poll)(struct tb_engine *, const struct tb_headers *, int32_t *, size_t, size_t, int64_t);
    int64_t (*next_deadline_ns)(const struct tb_engine *);
    uint64_t (*take_high_water)(struct tb_engine *);
    int64_t rest_ns;
    int32_t receive_fd;
    int32_t control_fd;
    uint32_t resting;
    uint32_t held; /* contributions in the first rows that the engine did not take whole */
    /* A contribution of one of the `awaited_rounds` rounds from `awaited_round` on brings the loop back; 0: of none. */
    uint32_t awaited_round;
    uint32_t awaited_rounds;
    uint32_t newest_round; /* the newest of these that has come */
};

enum tb_turn {
    TB_TURN_CONTROL = 1,      /* a message of run control waits */
    TB_TURN_PROBES = 2,       /* probes have arrived; fetch them before the next call, whatever the turn */
    TB_TURN_ENGINE_FAILED = 3, /* `held` contributions still have to be dealt with */
    TB_TURN_OCCUPANCY = 4,    /* the record of occupancy is full */
    TB_TURN_ROUND = 5         /* contributions of an awaited round have come */
};

/* Serve until there is something that only the caller can do; returns a tb_turn, or minus an errno. */
TB_EXPORT int tb_edge_run(struct tb_edge *edge);

#endif
