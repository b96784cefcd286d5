/* Taking and giving back the engine's memory, and what it can do. */
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

#define MAX_SLOTS (UINT64_C(1) << 31)
#define MAX_VALUES 16384u
#define MAX_BATCH 65536u
#define CACHE_LINE 64u
#define ROW_VALUES (CACHE_LINE / sizeof(int32_t))

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
        .max_contributors = MAX_CONTRIBUTORS,
    };
}

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
    PLACE(opened_ns, config->slots);
    PLACE(occupants, config->slots);
    PLACE(openers, config->slots);
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
        config->number_format > TB_FLOAT_32 || config->reordering_ns < 0 || config->slots_per_source < 1)
        return TB_BAD_CONFIG;
    struct tb_engine measured = {.config = *config};
    measured.row_values = (config->values_per_chunk + ROW_VALUES - 1) / ROW_VALUES * ROW_VALUES;
    size_t bytes = lay_out(&measured, NULL);
    /* Pages are backed by memory only once they are written, so a large budget costs what is used of it. */
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return TB_NO_MEMORY;
    /* In small pages a sum is spread over several, and each has to be looked up again when the sum is come back to. Where
     * there are no huge pages nothing is lost. */
    madvise(base, bytes, MADV_HUGEPAGE);
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
    memset(engine->opened, 0, sizeof engine->opened);
    engine->earliest_ns = TB_NEVER;
    engine->free_row_count = engine->config.max_batch;
    for (uint32_t i = 0; i < engine->config.max_batch; i++) engine->free_rows[i] = engine->config.max_batch - 1 - i;
    engine->staged_head = engine->staged_count = 0;
    engine->past = (struct tb_counters){0};
    engine->last_clique = 0;
    memset(engine->cliques, 0, sizeof engine->cliques);
}
