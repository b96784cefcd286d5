#include "held.h"

#include <string.h>
#include <sys/mman.h>

/* Mapped memory that the kernel provides page by page, on first use. */
static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bool held_queue_init(struct held_queue *queue, size_t frames)
{
    size_t capacity = 16;
    while (capacity < frames)
        capacity *= 2;
    *queue = (struct held_queue){.entries = map(capacity * sizeof(struct held)), .capacity = capacity};
    return queue->entries != NULL;
}

void held_queue_free(struct held_queue *queue)
{
    if (queue->entries)
        munmap(queue->entries, queue->capacity * sizeof(struct held));
    *queue = (struct held_queue){0};
}

size_t held_queue_put(struct held_queue *queue, int64_t due_ns, struct frame *frame)
{
    size_t place = queue->count++;
    while (place > 0 && held_queue_at(queue, place - 1)->due_ns > due_ns) {
        *held_queue_at(queue, place) = *held_queue_at(queue, place - 1);
        place--;
    }
    *held_queue_at(queue, place) = (struct held){due_ns, frame};
    return queue->count - 1 - place;
}

bool pool_init(struct pool *pool, size_t frames)
{
    *pool = (struct pool){.frames = map(frames * sizeof(struct frame)), .capacity = frames};
    return pool->frames != NULL;
}

void pool_free(struct pool *pool)
{
    if (pool->frames)
        munmap(pool->frames, pool->capacity * sizeof(struct frame));
    *pool = (struct pool){0};
}

struct frame *pool_take(struct pool *pool)
{
    struct frame *frame = pool->free;
    if (frame)
        pool->free = frame->next_free;
    else if (pool->touched < pool->capacity)
        frame = &pool->frames[pool->touched++];
    return frame;
}

void pool_give_back(struct pool *pool, struct frame *frame)
{
    frame->next_free = pool->free;
    pool->free = frame;
}

/* Before each block. A block is `size` bytes with its header, a multiple of the header's size. */
struct block {
    uint64_t size;
    uint64_t in_use;
};

static struct block *block_at(const struct arena *arena, size_t position)
{
    return (struct block *)(void *)(arena->memory + position);
}

bool arena_init(struct arena *arena, size_t bytes)
{
    size_t size = bytes / sizeof(struct block) * sizeof(struct block);
    *arena = (struct arena){.memory = map(size), .size = size};
    return arena->memory != NULL;
}

void arena_free(struct arena *arena)
{
    if (arena->memory)
        munmap(arena->memory, arena->size);
    *arena = (struct arena){0};
}

static size_t advance(const struct arena *arena, size_t position, size_t by)
{
    return position + by == arena->size ? 0 : position + by;
}

static struct block *take_block(struct arena *arena, size_t size, bool in_use)
{
    struct block *block = block_at(arena, arena->head);
    *block = (struct block){size, in_use};
    arena->head = advance(arena, arena->head, size);
    arena->used += size;
    return block;
}

uint8_t *arena_take(struct arena *arena, uint32_t bytes)
{
    size_t size = (bytes + 2 * sizeof(struct block) - 1) / sizeof(struct block) * sizeof(struct block);
    size_t to_end = arena->size - arena->head;
    size_t padding = to_end < size ? to_end : 0;
    if (arena->used + padding + size > arena->size)
        return NULL;
    if (padding > 0)
        take_block(arena, padding, false);
    return (uint8_t *)(take_block(arena, size, true) + 1);
}

void arena_give_back(struct arena *arena, uint8_t *data)
{
    ((struct block *)(void *)data - 1)->in_use = 0;
    while (arena->used > 0 && !block_at(arena, arena->tail)->in_use) {
        size_t size = block_at(arena, arena->tail)->size;
        arena->tail = advance(arena, arena->tail, size);
        arena->used -= size;
    }
    if (arena->used == 0) /* begin again where the memory is warm */
        arena->head = arena->tail = 0;
}
