/* Frames on their way, sorted by the time they are due, and memory for those that do not stay in a packet ring. */
#ifndef DELAYLINE_HELD_H
#define DELAYLINE_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOT_IN_RING UINT32_MAX

struct held {
    int64_t due_ns;
    uint8_t *data;
    uint32_t bytes;
    uint32_t slot; /* of the packet ring, or NOT_IN_RING when `data` is from the arena */
};

/* A circular array sorted by due time; frames due at the same time keep the order in which they were put. */
struct held_queue {
    struct held *entries;
    size_t capacity, first, count; /* capacity is a power of two */
};

bool held_queue_init(struct held_queue *queue, size_t frames);
void held_queue_free(struct held_queue *queue);

/* Steps over frames that are due later, from the back: constant time unless frames overtake. Returns how many frames
 * it overtook, or -1 when full. */
ptrdiff_t held_queue_put(struct held_queue *queue, struct held frame);

/* The n-th frame from the front; n < count. */
static inline struct held *held_queue_at(const struct held_queue *queue, size_t n)
{
    return &queue->entries[(queue->first + n) & (queue->capacity - 1)];
}

static inline void held_queue_drop_front(struct held_queue *queue)
{
    queue->first++;
    queue->count--;
}

/* A circular buffer of variable-sized blocks: taken in order, given back in any order. Its memory is mapped at once
 * and becomes real when it is first used. */
struct arena {
    uint8_t *memory;
    size_t size, head, tail, used;
};

bool arena_init(struct arena *arena, size_t bytes);
void arena_free(struct arena *arena);
uint8_t *arena_take(struct arena *arena, uint32_t bytes); /* NULL when full */
void arena_give_back(struct arena *arena, uint8_t *data);

#endif
