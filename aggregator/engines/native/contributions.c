/* What happens to each contribution: the rules of docs/aggregator.md, in their order. */
#include <string.h>

#include "index.h"
#include "results.h"
#include "rounds.h"
#include "slots.h"

#define LOOK_AHEAD 16u

static void evict_oldest(struct tb_engine *engine, int64_t now_ns) {
    uint32_t oldest = 0;
    for (uint32_t slot = 1; slot < engine->used_slots; slot++)
        if (engine->deadlines[slot] < engine->deadlines[oldest]) oldest = slot;
    struct entry *entry = &engine->entries[engine->occupants[oldest]];
    memcpy(stage(engine, entry, TB_COLLISION), slot_sum(engine, oldest), entry->value_count * sizeof(int32_t));
    engine->cliques[entry->clique].counts.collision++;
    evict(engine, entry, now_ns);
}

/* Give the key a slot with these values; false when the pool is empty and the newcomer has to bypass. */
static bool open_slot(struct tb_engine *engine, struct entry *entry, const int32_t *values, uint8_t source,
                      int64_t now_ns) {
    uint32_t slot = 0;
    if (!take_slot(engine, &slot)) {
        if (!engine->config.evict_old) return false;
        evict_oldest(engine, now_ns);
        take_slot(engine, &slot);
    }
    memcpy(slot_sum(engine, slot), values, entry->value_count * sizeof *values);
    entry->slot = slot;
    entry->in_sum = UINT64_C(1) << source;
    entry->until_ns = 0;
    engine->openers[slot] = source;
    engine->opened[source]++;
    engine->opened_ns[slot] = now_ns;
    engine->occupants[slot] = (uint64_t)(entry - engine->entries);
    int64_t deadline_ns = now_ns + engine->cliques[entry->clique].deadline_ns;
    engine->deadlines[slot] = deadline_ns;
    if (deadline_ns < engine->earliest_ns) engine->earliest_ns = deadline_ns;
    return true;
}

static void complete(struct tb_engine *engine, struct entry *entry, const int32_t *values, uint64_t bit,
                     int64_t now_ns) {
    entry->in_sum |= bit;
    int32_t *total = stage(engine, entry, TB_COMPLETE);
    engine->cliques[entry->clique].counts.complete++;
    if (entry->slot == NO_SLOT) {
        memcpy(total, values, entry->value_count * sizeof *values);
        entry->closed = true;
        bury(engine, entry, now_ns);
    } else {
        struct tb_counters *counts = &engine->cliques[entry->clique].counts;
        uint64_t waited_ns = (uint64_t)(now_ns - engine->opened_ns[entry->slot]);
        if (waited_ns > counts->longest_wait_ns) counts->longest_wait_ns = waited_ns;
        engine->sum(total, slot_sum(engine, entry->slot), values, entry->value_count);
        evict(engine, entry, now_ns);
    }
}

/* One contribution of an announced round from an expected contributor. */
static enum tb_verdict take(struct tb_engine *engine, uint32_t number, uint64_t hashed, const struct tb_headers *headers,
                            size_t i, const int32_t *values, int64_t now_ns) {
    struct clique *clique = &engine->cliques[number];
    uint8_t source = headers->source[i];
    uint64_t bit = UINT64_C(1) << source;
    struct entry *entry =
        find_or_enter(engine, hashed, number, headers->shard[i], headers->chunk[i], headers->value_count[i], now_ns);
    if (!entry) {
        clique->counts.bypassed_index++;
        return TB_BYPASSED_COLLISION;
    }
    if (entry->seen & bit) {
        clique->counts.duplicate++;
        return TB_DUPLICATE;
    }
    if (entry->value_count != headers->value_count[i]) {
        clique->counts.refused_length++;
        return TB_REFUSED_LENGTH;
    }
    if (entry->closed) {
        entry->seen |= bit;
        clique->counts.late++;
        return engine->config.drop_late ? TB_DROPPED_LATE : TB_BYPASSED_LATE;
    }
    if ((entry->seen | bit) == clique->expected) {
        complete(engine, entry, values, bit, now_ns);
    } else if (entry->slot != NO_SLOT) {
        int32_t *total = slot_sum(engine, entry->slot);
        engine->sum(total, total, values, entry->value_count);
        entry->in_sum |= bit;
    } else {
        bool capped = engine->opened[source] >= engine->config.slots_per_source;
        if (capped || !open_slot(engine, entry, values, source, now_ns)) {
            entry->seen |= bit;
            if (!entry->until_ns) bury(engine, entry, now_ns);
            if (capped)
                clique->counts.bypassed_source++;
            else
                clique->counts.bypassed_pool++;
            return TB_BYPASSED_COLLISION;
        }
    }
    entry->seen |= bit;
    clique->counts.added++;
    return TB_ADDED;
}

static enum tb_verdict submit_one(struct tb_engine *engine, uint64_t hashed, const struct tb_headers *headers, size_t i,
                                  const int32_t *values, int64_t now_ns) {
    uint32_t number = find_clique(engine, headers->job[i], headers->epoch[i], headers->round[i]);
    if (number == MAX_ROUNDS) {
        engine->past.contributions++;
        engine->past.refused_epoch++;
        return TB_REFUSED_EPOCH;
    }
    struct clique *clique = &engine->cliques[number];
    clique->counts.contributions++;
    uint8_t source = headers->source[i];
    if (source >= 64 || !(clique->expected >> source & 1)) {
        clique->counts.refused_source++;
        return TB_REFUSED_SOURCE;
    }
    if (headers->value_count[i] < 1 || headers->value_count[i] > engine->config.values_per_chunk) {
        clique->counts.refused_length++;
        return TB_REFUSED_LENGTH;
    }
    return take(engine, number, hashed, headers, i, values, now_ns);
}

size_t tb_submit(struct tb_engine *engine, const struct tb_headers *headers, const int32_t *payloads,
                 size_t stride_values, size_t count, int64_t now_ns) {
    uint64_t hashed[LOOK_AHEAD];
    for (size_t first = 0; first < count; first += LOOK_AHEAD) {
        size_t some = count - first < LOOK_AHEAD ? count - first : LOOK_AHEAD;
        for (size_t i = 0; i < some; i++) fetch_tags(engine, hashed[i] = hash(engine, headers, first + i));
        for (size_t i = 0; i < some; i++) fetch_entry(engine, hashed[i]);
        for (size_t i = 0; i < some; i++) {
            size_t row = first + i;
            if (!engine->free_row_count) return row;
            const int32_t *values = payloads + row * stride_values;
            headers->verdict[row] = (uint8_t)submit_one(engine, hashed[i], headers, row, values, now_ns);
        }
    }
    return count;
}
