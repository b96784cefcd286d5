/* Announced rounds and what is counted for them. */
#ifndef TESTBED_NATIVE_ROUNDS_H
#define TESTBED_NATIVE_ROUNDS_H

#include "engine.h"

static inline bool is_round(const struct clique *clique, uint32_t job, uint32_t epoch, uint32_t round) {
    return clique->announced && clique->round == round && clique->epoch == epoch && clique->job == job;
}

/* The number of an announced round, or MAX_ROUNDS. Packets of one round come together, so the last one found is tried
 * first. */
static inline uint32_t find_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round) {
    if (is_round(&engine->cliques[engine->last_clique], job, epoch, round)) return engine->last_clique;
    for (uint32_t i = 0; i < MAX_ROUNDS; i++)
        if (is_round(&engine->cliques[i], job, epoch, round)) return engine->last_clique = i;
    return MAX_ROUNDS;
}

#endif
