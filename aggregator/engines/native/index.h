/* The set-associative index: a set's 16 tags fill one cache line, and a tag that matches is confirmed by the entry behind
 * it. Tombstones end lazily, when their way is looked at. */
#ifndef TESTBED_NATIVE_INDEX_H
#define TESTBED_NATIVE_INDEX_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "engine.h"

#define MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)

/* Of the key of row i. */
static inline uint64_t hash(const struct tb_engine *engine, const struct tb_headers *headers, size_t i) {
    const uint64_t words[] = {(uint64_t)headers->job[i] << 32 | headers->epoch[i],
                              (uint64_t)headers->round[i] << 32 | headers->chunk[i], headers->shard[i]};
    uint64_t state = engine->config.hash_key;
    for (int word = 0; word < 3; word++) {
        state = (state ^ words[word]) * MULTIPLIER;
        state ^= state >> 32;
    }
    return state;
}

static inline uint64_t first_way(const struct tb_engine *engine, uint64_t hashed) {
    return (hashed & (engine->sets - 1)) * TB_INDEX_WAYS;
}

static inline uint32_t tag_of(uint64_t hashed) { return (uint32_t)(hashed >> 32) | 1u; }

/* The ways of a set that have this tag, as bits. */
static inline uint32_t ways_with(const uint32_t *tags, uint32_t tag) {
    uint32_t found = 0;
#if defined(__SSE2__)
    __m128i wanted = _mm_set1_epi32((int)tag);
    for (uint32_t way = 0; way < TB_INDEX_WAYS; way += 4) {
        __m128i equal = _mm_cmpeq_epi32(_mm_load_si128((const __m128i *)(const void *)(tags + way)), wanted);
        found |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(equal)) << way;
    }
#else
    for (uint32_t way = 0; way < TB_INDEX_WAYS; way++) found |= (uint32_t)(tags[way] == tag) << way;
#endif
    return found;
}

static inline bool has_ended(const struct entry *entry, int64_t now_ns) {
    return entry->until_ns && entry->until_ns <= now_ns;
}

/* Ask the cache for what `find_or_enter` will look at: first for the tags, and when they are there, for the entry. */
static inline void fetch_tags(const struct tb_engine *engine, uint64_t hashed) {
    __builtin_prefetch(engine->tags + first_way(engine, hashed), 1);
}

static inline void fetch_entry(const struct tb_engine *engine, uint64_t hashed) {
    uint64_t first = first_way(engine, hashed);
    uint32_t found = ways_with(engine->tags + first, tag_of(hashed));
    if (!found) found = ways_with(engine->tags + first, 0);
    if (found) __builtin_prefetch(&engine->entries[first + (uint32_t)__builtin_ctz(found)], 1);
}

/* A way of the set that is free, or whose tombstone has ended; TB_INDEX_WAYS if there is none. */
static inline uint32_t free_way(const struct tb_engine *engine, uint64_t first, int64_t now_ns) {
    uint32_t untagged = ways_with(engine->tags + first, 0);
    if (untagged) return (uint32_t)__builtin_ctz(untagged);
    uint32_t way = 0;
    while (way < TB_INDEX_WAYS && !has_ended(&engine->entries[first + way], now_ns)) way++;
    return way;
}

/* The key's entry; a fresh one (`seen` is 0) if it had none; NULL if its set has no free way. */
static inline struct entry *find_or_enter(struct tb_engine *engine, uint64_t hashed, uint32_t number, uint16_t shard,
                                          uint32_t chunk, uint16_t value_count, int64_t now_ns) {
    uint64_t first = first_way(engine, hashed);
    uint32_t tag = tag_of(hashed);
    for (uint32_t found = ways_with(engine->tags + first, tag); found; found &= found - 1) {
        uint64_t at = first + (uint32_t)__builtin_ctz(found);
        struct entry *entry = &engine->entries[at];
        if (entry->chunk != chunk || entry->shard != shard || entry->clique != number) continue;
        if (!has_ended(entry, now_ns)) return entry;
        engine->tags[at] = 0;
    }
    uint32_t way = free_way(engine, first, now_ns);
    if (way == TB_INDEX_WAYS) return NULL;
    struct entry *entry = &engine->entries[first + way];
    engine->tags[first + way] = tag;
    *entry = (struct entry){
        .chunk = chunk, .shard = shard, .clique = (uint16_t)number, .value_count = value_count, .slot = NO_SLOT};
    return entry;
}

#endif
