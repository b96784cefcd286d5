/* Results on their way out. */
#ifndef TESTBED_NATIVE_RESULTS_H
#define TESTBED_NATIVE_RESULTS_H

#include "engine.h"

/* Queue a result; returns the staging row for its sum. There is a free one: `tb_submit` looks before each contribution,
 * and no contribution makes two results, since one that completes its key takes no slot. */
static inline int32_t *stage(struct tb_engine *engine, const struct entry *entry, enum tb_reason reason) {
    const struct clique *clique = &engine->cliques[entry->clique];
    uint32_t row = engine->free_rows[--engine->free_row_count];
    engine->staged[(engine->staged_head + engine->staged_count++) % engine->config.max_batch] = (struct staged){
        .bitmap = entry->in_sum,
        .job = clique->job,
        .epoch = clique->epoch,
        .round = clique->round,
        .chunk = entry->chunk,
        .row = row,
        .shard = entry->shard,
        .value_count = entry->value_count,
        .reason = (uint8_t)reason,
    };
    return engine->staging + row * engine->row_values;
}

#endif
