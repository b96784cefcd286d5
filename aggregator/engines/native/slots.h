/* The pool of slots. Free slots are a stack on which 0 lies on top at first; those never used are not on it yet. */
#ifndef TESTBED_NATIVE_SLOTS_H
#define TESTBED_NATIVE_SLOTS_H

#include "engine.h"

static inline int32_t *slot_sum(const struct tb_engine *engine, uint64_t slot) {
    return engine->pool + slot * engine->row_values;
}

static inline bool take_slot(struct tb_engine *engine, uint32_t *slot) {
    if (engine->free_count)
        *slot = engine->free_slots[--engine->free_count];
    else if (engine->used_slots < engine->config.slots)
        *slot = (uint32_t)engine->used_slots++;
    else
        return false;
    if (++engine->in_use > engine->high_water) engine->high_water = engine->in_use;
    return true;
}

static inline void release_slot(struct tb_engine *engine, uint32_t slot) {
    engine->deadlines[slot] = TB_NEVER;
    engine->free_slots[engine->free_count++] = slot;
    engine->opened[engine->openers[slot]]--;
    engine->in_use--;
}

/* Remember a key without a slot for as long as its packets may still come. */
static inline void bury(struct tb_engine *engine, struct entry *entry, int64_t now_ns) {
    entry->slot = NO_SLOT;
    entry->until_ns = now_ns + engine->cliques[entry->clique].deadline_ns + engine->config.reordering_ns;
}

static inline void evict(struct tb_engine *engine, struct entry *entry, int64_t now_ns) {
    release_slot(engine, entry->slot);
    entry->closed = true;
    bury(engine, entry, now_ns);
}

#endif
