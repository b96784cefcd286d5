#include "rounds.h"

#include "slots.h"

int tb_set_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round, uint64_t expected,
                  int64_t deadline_ns) {
    if (find_clique(engine, job, epoch, round) < MAX_ROUNDS) return TB_ANNOUNCED;
    uint32_t i = 0;
    while (i < MAX_ROUNDS && engine->cliques[i].announced) i++;
    if (i == MAX_ROUNDS) return TB_TOO_MANY_ROUNDS;
    engine->cliques[i] = (struct clique){
        .announced = true, .job = job, .epoch = epoch, .round = round, .expected = expected, .deadline_ns = deadline_ns};
    return TB_OK;
}

static void add_counters(struct tb_counters *total, const struct tb_counters *counts) {
    total->contributions += counts->contributions;
    total->added += counts->added;
    total->complete += counts->complete;
    total->timeout += counts->timeout;
    total->collision += counts->collision;
    total->bypassed_pool += counts->bypassed_pool;
    total->bypassed_index += counts->bypassed_index;
    total->bypassed_source += counts->bypassed_source;
    total->late += counts->late;
    total->duplicate += counts->duplicate;
    total->refused_epoch += counts->refused_epoch;
    total->refused_source += counts->refused_source;
    total->refused_length += counts->refused_length;
    total->abandoned += counts->abandoned;
    if (counts->longest_wait_ns > total->longest_wait_ns) total->longest_wait_ns = counts->longest_wait_ns;
}

int tb_drop_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round, struct tb_counters *out) {
    uint32_t number = find_clique(engine, job, epoch, round);
    if (number == MAX_ROUNDS) return TB_NOT_ANNOUNCED;
    struct clique *clique = &engine->cliques[number];
    for (uint32_t slot = 0; slot < engine->used_slots; slot++) {
        if (engine->deadlines[slot] == TB_NEVER) continue;
        if (engine->entries[engine->occupants[slot]].clique != number) continue;
        release_slot(engine, slot);
        clique->counts.abandoned++;
    }
    for (uint64_t i = 0; i < engine->config.index_entries; i++)
        if (engine->tags[i] && engine->entries[i].clique == number) engine->tags[i] = 0;
    clique->announced = false;
    add_counters(&engine->past, &clique->counts);
    *out = clique->counts;
    return TB_OK;
}

void tb_stats(const struct tb_engine *engine, struct tb_stats *out) {
    *out = (struct tb_stats){
        .counters = engine->past, .slots_in_use = engine->in_use, .high_water_slots = engine->high_water};
    for (uint32_t i = 0; i < MAX_ROUNDS; i++)
        if (engine->cliques[i].announced) add_counters(&out->counters, &engine->cliques[i].counts);
}

uint64_t tb_take_high_water(struct tb_engine *engine) {
    uint64_t high_water = engine->high_water;
    engine->high_water = engine->in_use;
    return high_water;
}
