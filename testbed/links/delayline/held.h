/* Frames on their way, sorted by the time they are due, and memory for those that do not stay in a packet ring. */
#ifndef DELAYLINE_HELD_H
#define DELAYLINE_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOT_IN_RING UINT32_MAX

/* A frame, wherever its bytes are. */
struct frame {
    union {
        uint8_t *data;
        struct frame *next_free; /* of the pool */
    };
    uint32_t bytes;
    uint32_t slot; /* of the packet ring, or NOT_IN_RING when `data` is from the arena */
};

struct held {
    int64_t due_ns;
    struct frame *frame;
};

/* A circular array sorted by due time; frames due at the same time keep the order in which they were put. */
struct held_queue {
    struct held *entries;
    size_t capacity, first, count; /* capacity is a power of two */
};

bool held_queue_init(struct held_queue *queue, size_t frames);
void held_queue_free(struct held_queue *queue);

/* Steps over frames that are due later, from the back: constant time unless frames overtake. Returns how many frames
 * it overtook. The queue must not be full; it is as large as the pool, so it never is. */
size_t held_queue_put(struct held_queue *queue, int64_t due_ns, struct frame *frame);

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

/* As many frames as can be held at once; what was given back last is taken first, while it is in the cache. */
struct pool {
    struct frame *frames;
    size_t capacity, touched; /* from `touched` on they have never been used */
    struct frame *free;
};

bool pool_init(struct pool *pool, size_t frames);
void pool_free(struct pool *pool);
struct frame *pool_take(struct pool *pool); /* NULL when empty */
void pool_give_back(struct pool *pool, struct frame *frame);

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
