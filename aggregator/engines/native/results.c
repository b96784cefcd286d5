/* Handing results out: first those that were staged, then slots whose deadline has come. Deadlines are swept by age: a
 * sweep runs when the earliest deadline that was ever noted has come, and looks at the slots that were used so far. */
#include "results.h"

#include <stdlib.h>
#include <string.h>

#include "slots.h"

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
