/*
 * Engine `native`: the rules of docs/aggregator.md in C11, behind the ABI of testbed_engine.h.
 *
 * One mapping holds everything. The index is set-associative: a set's 16 tags fill one cache line, and a tag that
 * matches is confirmed by the entry behind it. Deadlines are swept by age: a sweep runs when the earliest deadline that
 * was ever noted has come, and looks at the slots that have been used so far. Tombstones end lazily, when their way is
 * looked at. Nothing is allocated after `tb_open`.
 */
#include "../testbed_engine.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sum.h"

#define MAX_ROUNDS 256u
#define MAX_SLOTS (UINT64_C(1) << 31)
#define MAX_VALUES 16384u
#define MAX_BATCH 65536u
#define NO_SLOT UINT32_MAX
#define CACHE_LINE 64u
#define ROW_VALUES (CACHE_LINE / sizeof(int32_t))
#define MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)

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
    size_t row_values;
    uint64_t sets;
    tb_sum *sum;

    uint32_t *tags; /* 0: the way is free */
    struct entry *entries;
    int32_t *pool;
    int64_t *deadlines;  /* by slot; TB_NEVER: free */
    uint64_t *occupants; /* by slot: its entry */
    uint32_t *free_slots, *due;
    uint64_t free_count, used_slots, in_use, high_water;
    int64_t earliest_ns;

    int32_t *staging;
    struct staged *staged;
    uint32_t *free_rows;
    uint32_t free_row_count, staged_head, staged_count;

    struct tb_counters past;
    uint32_t last_clique;
    struct clique cliques[MAX_ROUNDS];
};

uint32_t tb_abi_version(void) { return TB_ABI_VERSION; }

void tb_capabilities(struct tb_capabilities *out) {
    *out = (struct tb_capabilities){
        .name = "native",
        .kind = "native",
        .max_slots = MAX_SLOTS,
        .max_values_per_chunk = MAX_VALUES,
        .max_batch = MAX_BATCH,
        .max_rounds = MAX_ROUNDS,
        .number_formats = 1u << TB_FIXED_POINT_32 | 1u << TB_FLOAT_32,
        .collision_policies = 3,
        .max_contributors = 64,
    };
}

/* --- memory --- */

static size_t rounded(size_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

/* Set every pointer into the mapping at `base` (or only measure, with NULL); returns the bytes that are needed. */
static size_t lay_out(struct tb_engine *engine, char *base) {
    const struct tb_config *config = &engine->config;
    size_t at = rounded(sizeof *engine);
#define PLACE(field, count)                                 \
    do {                                                    \
        if (base) engine->field = (void *)(base + at);      \
        at += rounded((size_t)(count) * sizeof *engine->field); \
    } while (0)
    PLACE(tags, config->index_entries);
    PLACE(entries, config->index_entries);
    PLACE(deadlines, config->slots);
    PLACE(occupants, config->slots);
    PLACE(free_slots, config->slots);
    PLACE(due, config->slots);
    PLACE(staged, config->max_batch);
    PLACE(free_rows, config->max_batch);
    PLACE(staging, config->max_batch * engine->row_values);
    PLACE(pool, config->slots * engine->row_values);
#undef PLACE
    return at;
}

int tb_open(const struct tb_config *config, struct tb_engine **out) {
    uint64_t entries = config->index_entries;
    if (config->slots < 1 || config->slots > MAX_SLOTS || config->values_per_chunk < 1 ||
        config->values_per_chunk > MAX_VALUES || config->max_batch < 1 || config->max_batch > MAX_BATCH ||
        entries < TB_INDEX_WAYS || entries < 4 * config->slots || (entries & (entries - 1)) ||
        config->number_format > TB_FLOAT_32 || config->reordering_ns < 0)
        return TB_BAD_CONFIG;
    struct tb_engine measured = {.config = *config};
    measured.row_values = (config->values_per_chunk + ROW_VALUES - 1) / ROW_VALUES * ROW_VALUES;
    size_t bytes = lay_out(&measured, NULL);
    /* Pages are backed by memory only once they are written, so a large budget costs what is used of it. */
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return TB_NO_MEMORY;
    struct tb_engine *engine = (struct tb_engine *)(void *)base;
    engine->mapped_bytes = bytes;
    engine->config = *config;
    engine->row_values = measured.row_values;
    engine->sets = entries / TB_INDEX_WAYS;
    engine->sum = tb_best_sum(config->number_format == TB_FLOAT_32);
    lay_out(engine, base);
    tb_reset(engine);
    *out = engine;
    return TB_OK;
}

void tb_close(struct tb_engine *engine) { munmap(engine, engine->mapped_bytes); }

void tb_reset(struct tb_engine *engine) {
    memset(engine->tags, 0, engine->config.index_entries * sizeof *engine->tags);
    engine->free_count = 0;
    engine->used_slots = 0;
    engine->in_use = engine->high_water = 0;
    engine->earliest_ns = TB_NEVER;
    engine->free_row_count = engine->config.max_batch;
    for (uint32_t i = 0; i < engine->config.max_batch; i++) engine->free_rows[i] = engine->config.max_batch - 1 - i;
    engine->staged_head = engine->staged_count = 0;
    engine->past = (struct tb_counters){0};
    engine->last_clique = 0;
    memset(engine->cliques, 0, sizeof engine->cliques);
}

/* --- rounds --- */

static bool is_round(const struct clique *clique, uint32_t job, uint32_t epoch, uint32_t round) {
    return clique->announced && clique->round == round && clique->epoch == epoch && clique->job == job;
}

/* The number of an announced round, or MAX_ROUNDS. Packets of one round come together, so the last one found is tried
 * first. */
static uint32_t find_clique(struct tb_engine *engine, uint32_t job, uint32_t epoch, uint32_t round) {
    if (is_round(&engine->cliques[engine->last_clique], job, epoch, round)) return engine->last_clique;
    for (uint32_t i = 0; i < MAX_ROUNDS; i++)
        if (is_round(&engine->cliques[i], job, epoch, round)) return engine->last_clique = i;
    return MAX_ROUNDS;
}

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
    total->late += counts->late;
    total->duplicate += counts->duplicate;
    total->refused_epoch += counts->refused_epoch;
    total->refused_source += counts->refused_source;
    total->refused_length += counts->refused_length;
    total->abandoned += counts->abandoned;
}

/* --- slots --- */

static int32_t *slot_sum(struct tb_engine *engine, uint64_t slot) { return engine->pool + slot * engine->row_values; }

/* Slots are given out as from a stack on which 0 lies on top at first; those never used are not on it yet. */
static bool take_slot(struct tb_engine *engine, uint32_t *slot) {
    if (engine->free_count)
        *slot = engine->free_slots[--engine->free_count];
    else if (engine->used_slots < engine->config.slots)
        *slot = (uint32_t)engine->used_slots++;
    else
        return false;
    if (++engine->in_use > engine->high_water) engine->high_water = engine->in_use;
    return true;
}

static void release_slot(struct tb_engine *engine, uint32_t slot) {
    engine->deadlines[slot] = TB_NEVER;
    engine->free_slots[engine->free_count++] = slot;
    engine->in_use--;
}

/* Remember a key without a slot for as long as its packets may still come. */
static void bury(struct tb_engine *engine, struct entry *entry, int64_t now_ns) {
    entry->slot = NO_SLOT;
    entry->until_ns = now_ns + engine->cliques[entry->clique].deadline_ns + engine->config.reordering_ns;
}

static void evict(struct tb_engine *engine, struct entry *entry, int64_t now_ns) {
    release_slot(engine, entry->slot);
    entry->closed = true;
    bury(engine, entry, now_ns);
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

/* --- index --- */

static uint64_t hash(uint64_t key, const struct clique *clique, uint16_t shard, uint32_t chunk) {
    const uint64_t words[] = {(uint64_t)clique->job << 32 | clique->epoch, (uint64_t)clique->round << 32 | chunk, shard};
    uint64_t state = key;
    for (size_t i = 0; i < 3; i++) {
        state = (state ^ words[i]) * MULTIPLIER;
        state ^= state >> 32;
    }
    return state;
}

/* The key's entry; a fresh one (`seen` is 0) if it had none; NULL if its set has no free way. */
static struct entry *find_or_enter(struct tb_engine *engine, uint32_t number, uint16_t shard, uint32_t chunk,
                                   uint16_t value_count, int64_t now_ns) {
    uint64_t state = hash(engine->config.hash_key, &engine->cliques[number], shard, chunk);
    uint64_t first = (state & (engine->sets - 1)) * TB_INDEX_WAYS;
    uint32_t tag = (uint32_t)(state >> 32) | 1u;
    const uint32_t *tags = engine->tags + first;
    for (uint64_t way = 0; way < TB_INDEX_WAYS; way++) {
        struct entry *entry = &engine->entries[first + way];
        if (tags[way] != tag || entry->chunk != chunk || entry->shard != shard || entry->clique != number) continue;
        if (!entry->until_ns || entry->until_ns > now_ns) return entry;
        engine->tags[first + way] = 0;
    }
    for (uint64_t way = 0; way < TB_INDEX_WAYS; way++) {
        struct entry *entry = &engine->entries[first + way];
        if (tags[way] && (!entry->until_ns || entry->until_ns > now_ns)) continue;
        engine->tags[first + way] = tag;
        *entry = (struct entry){
            .chunk = chunk, .shard = shard, .clique = (uint16_t)number, .value_count = value_count, .slot = NO_SLOT};
        return entry;
    }
    return NULL;
}

/* --- results --- */

/* Queue a result; returns the staging row for its sum. There is a free one: `tb_submit` looks before each contribution,
 * and no contribution makes two results, since one that completes its key takes no slot. */
static int32_t *stage(struct tb_engine *engine, const struct entry *entry, enum tb_reason reason) {
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

static void write_result(const struct tb_headers *headers, size_t i, const struct staged *result) {
    headers->job[i] = result->job;
    headers->epoch[i] = result->epoch;
    headers->round[i] = result->round;
    headers->shard[i] = result->shard;
    headers->chunk[i] = result->chunk;
    headers->value_count[i] = result->value_count;
    headers->reason[i] = result->reason;
    headers->contributors[i] = (uint8_t)__builtin_popcountll(result->bitmap);
    headers->bitmap[i] = result->bitmap;
}

/* --- contributions --- */

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
static bool open_slot(struct tb_engine *engine, struct entry *entry, const int32_t *values, uint64_t bit,
                      int64_t now_ns) {
    uint32_t slot = 0;
    if (!take_slot(engine, &slot)) {
        if (!engine->config.evict_old) return false;
        evict_oldest(engine, now_ns);
        take_slot(engine, &slot);
    }
    memcpy(slot_sum(engine, slot), values, entry->value_count * sizeof *values);
    entry->slot = slot;
    entry->in_sum = bit;
    entry->until_ns = 0;
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
        engine->sum(total, slot_sum(engine, entry->slot), values, entry->value_count);
        evict(engine, entry, now_ns);
    }
}

/* One contribution of an announced round from an expected contributor. */
static enum tb_verdict take(struct tb_engine *engine, uint32_t number, const struct tb_headers *headers, size_t i,
                            const int32_t *values, int64_t now_ns) {
    struct clique *clique = &engine->cliques[number];
    uint64_t bit = UINT64_C(1) << headers->source[i];
    struct entry *entry =
        find_or_enter(engine, number, headers->shard[i], headers->chunk[i], headers->value_count[i], now_ns);
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
    } else if (!open_slot(engine, entry, values, bit, now_ns)) {
        entry->seen |= bit;
        if (!entry->until_ns) bury(engine, entry, now_ns);
        clique->counts.bypassed_pool++;
        return TB_BYPASSED_COLLISION;
    }
    entry->seen |= bit;
    clique->counts.added++;
    return TB_ADDED;
}

size_t tb_submit(struct tb_engine *engine, const struct tb_headers *headers, const int32_t *payloads,
                 size_t stride_values, size_t count, int64_t now_ns) {
    for (size_t i = 0; i < count; i++) {
        if (!engine->free_row_count) return i;
        uint32_t number = find_clique(engine, headers->job[i], headers->epoch[i], headers->round[i]);
        if (number == MAX_ROUNDS) {
            engine->past.contributions++;
            engine->past.refused_epoch++;
            headers->verdict[i] = TB_REFUSED_EPOCH;
            continue;
        }
        struct clique *clique = &engine->cliques[number];
        clique->counts.contributions++;
        uint8_t source = headers->source[i];
        if (source >= 64 || !(clique->expected >> source & 1)) {
            clique->counts.refused_source++;
            headers->verdict[i] = TB_REFUSED_SOURCE;
        } else if (headers->value_count[i] < 1 || headers->value_count[i] > engine->config.values_per_chunk) {
            clique->counts.refused_length++;
            headers->verdict[i] = TB_REFUSED_LENGTH;
        } else {
            headers->verdict[i] = (uint8_t)take(engine, number, headers, i, payloads + i * stride_values, now_ns);
        }
    }
    return count;
}

/* --- deadlines --- */

static const int64_t *sorted_deadlines; /* for `by_deadline`, which takes no context; calls come from one thread */

static int by_deadline(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    if (sorted_deadlines[a] != sorted_deadlines[b]) return sorted_deadlines[a] < sorted_deadlines[b] ? -1 : 1;
    return a < b ? -1 : a > b;
}

static size_t poll_deadlines(struct tb_engine *engine, const struct tb_headers *headers, int32_t *payloads,
                             size_t stride_values, size_t first, size_t capacity, int64_t now_ns) {
    size_t due = 0, written = first;
    for (uint32_t slot = 0; slot < engine->used_slots; slot++)
        if (engine->deadlines[slot] <= now_ns) engine->due[due++] = slot;
    sorted_deadlines = engine->deadlines;
    qsort(engine->due, due, sizeof *engine->due, by_deadline);
    for (size_t i = 0; i < due && written < capacity; i++, written++) {
        uint32_t slot = engine->due[i];
        struct entry *entry = &engine->entries[engine->occupants[slot]];
        struct clique *clique = &engine->cliques[entry->clique];
        memcpy(payloads + written * stride_values, slot_sum(engine, slot), entry->value_count * sizeof *payloads);
        write_result(headers, written,
                     &(struct staged){.bitmap = entry->in_sum,
                                      .job = clique->job,
                                      .epoch = clique->epoch,
                                      .round = clique->round,
                                      .chunk = entry->chunk,
                                      .shard = entry->shard,
                                      .value_count = entry->value_count,
                                      .reason = TB_TIMEOUT});
        clique->counts.timeout++;
        evict(engine, entry, now_ns);
    }
    engine->earliest_ns = TB_NEVER;
    for (uint32_t slot = 0; slot < engine->used_slots; slot++)
        if (engine->deadlines[slot] < engine->earliest_ns) engine->earliest_ns = engine->deadlines[slot];
    return written;
}

size_t tb_poll(struct tb_engine *engine, const struct tb_headers *headers, int32_t *payloads, size_t stride_values,
               size_t capacity, int64_t now_ns) {
    size_t count = 0;
    while (engine->staged_count && count < capacity) {
        const struct staged *result = &engine->staged[engine->staged_head];
        memcpy(payloads + count * stride_values, engine->staging + result->row * engine->row_values,
               result->value_count * sizeof *payloads);
        write_result(headers, count++, result);
        engine->free_rows[engine->free_row_count++] = result->row;
        engine->staged_head = (engine->staged_head + 1) % engine->config.max_batch;
        engine->staged_count--;
    }
    if (now_ns < engine->earliest_ns || count == capacity) return count;
    return poll_deadlines(engine, headers, payloads, stride_values, count, capacity, now_ns);
}

int64_t tb_next_deadline_ns(const struct tb_engine *engine) {
    return engine->in_use ? engine->earliest_ns : TB_NEVER;
}

void tb_flush(struct tb_engine *engine, int64_t now_ns) {
    engine->earliest_ns = TB_NEVER;
    for (uint32_t slot = 0; slot < engine->used_slots; slot++) {
        if (engine->deadlines[slot] == TB_NEVER) continue;
        if (engine->deadlines[slot] > now_ns) engine->deadlines[slot] = now_ns;
        if (engine->deadlines[slot] < engine->earliest_ns) engine->earliest_ns = engine->deadlines[slot];
    }
}

/* --- counts --- */

void tb_stats(const struct tb_engine *engine, struct tb_stats *out) {
    *out = (struct tb_stats){
        .counters = engine->past, .slots_in_use = engine->in_use, .high_water_slots = engine->high_water};
    for (uint32_t i = 0; i < MAX_ROUNDS; i++)
        if (engine->cliques[i].announced) add_counters(&out->counters, &engine->cliques[i].counts);
}

void tb_reset_high_water(struct tb_engine *engine) { engine->high_water = engine->in_use; }
