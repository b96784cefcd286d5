#include <string.h>

#include "check.h"
#include "held.h"

static uint64_t state = 1;

static unsigned draw(unsigned below)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)((state >> 33) % below);
}

static void frames_come_out_by_due_time_and_then_in_order(void)
{
    struct held_queue queue;
    struct pool pool;
    CHECK(held_queue_init(&queue, 1000) && pool_init(&pool, 1000));
    int64_t last_due = 0;
    uint32_t put = 0, taken = 0, previous = 0;
    for (int round = 0; round < 200; round++) {
        for (unsigned n = draw(50); n > 0 && queue.count < 900; n--) {
            struct frame *frame = pool_take(&pool);
            CHECK(frame);
            *frame = (struct frame){.bytes = put++, .slot = NOT_IN_RING};
            held_queue_put(&queue, last_due + draw(20), frame);
        }
        for (unsigned n = draw(50); n > 0 && queue.count > 0; n--) {
            struct held first = *held_queue_at(&queue, 0);
            CHECK(first.due_ns >= last_due);
            CHECK(first.due_ns > last_due || taken == 0 || first.frame->bytes > previous);
            previous = first.frame->bytes;
            last_due = first.due_ns;
            held_queue_drop_front(&queue);
            pool_give_back(&pool, first.frame);
            taken++;
        }
    }
    CHECK(taken > 1000 && put - taken == queue.count);
    held_queue_free(&queue);
    pool_free(&pool);
}

static void overtaking_is_counted_and_ties_are_not(void)
{
    struct held_queue queue;
    struct frame frames[4] = {{.bytes = 0}, {.bytes = 1}, {.bytes = 2}, {.bytes = 3}};
    CHECK(held_queue_init(&queue, 16));
    CHECK(held_queue_put(&queue, 10, &frames[0]) == 0);
    CHECK(held_queue_put(&queue, 30, &frames[1]) == 0);
    CHECK(held_queue_put(&queue, 30, &frames[2]) == 0);
    CHECK(held_queue_put(&queue, 20, &frames[3]) == 2);
    const uint32_t order[] = {0, 3, 1, 2};
    for (size_t n = 0; n < 4; n++)
        CHECK(held_queue_at(&queue, n)->frame->bytes == order[n]);
    held_queue_free(&queue);
}

static void the_pool_has_as_many_as_asked(void)
{
    struct pool pool;
    struct frame *frames[3];
    CHECK(pool_init(&pool, 3));
    for (int n = 0; n < 3; n++)
        CHECK((frames[n] = pool_take(&pool)) != NULL);
    CHECK(pool_take(&pool) == NULL);
    pool_give_back(&pool, frames[1]);
    CHECK(pool_take(&pool) == frames[1]);
    CHECK(pool_take(&pool) == NULL);
    pool_free(&pool);
}

/* Blocks of any size, given back in any order, never overlap and all space comes back. */
static void the_arena_keeps_what_is_put_into_it(void)
{
    enum { MOST = 64 };
    struct arena arena;
    uint8_t *blocks[MOST] = {0};
    uint32_t sizes[MOST];
    CHECK(arena_init(&arena, 100000));
    int refused = 0, granted = 0;
    for (int step = 0; step < 200000; step++) {
        unsigned n = draw(MOST);
        if (blocks[n]) {
            for (uint32_t i = 0; i < sizes[n]; i++)
                CHECK(blocks[n][i] == (uint8_t)n);
            arena_give_back(&arena, blocks[n]);
            blocks[n] = NULL;
            continue;
        }
        sizes[n] = draw(4) ? draw(200) + 1 : draw(9018) + 1;
        blocks[n] = arena_take(&arena, sizes[n]);
        if (!blocks[n]) {
            refused++;
            continue;
        }
        granted++;
        CHECK(blocks[n] >= arena.memory && blocks[n] + sizes[n] <= arena.memory + arena.size);
        memset(blocks[n], (int)n, sizes[n]);
    }
    CHECK(refused > 0 && granted > 10000);
    for (int n = 0; n < MOST; n++)
        if (blocks[n])
            arena_give_back(&arena, blocks[n]);
    CHECK(arena.used == 0);
    CHECK(arena_take(&arena, 99984) == arena.memory + 16);
    CHECK(arena_take(&arena, 1) == NULL);
    arena_free(&arena);
}

int main(void)
{
    frames_come_out_by_due_time_and_then_in_order();
    overtaking_is_counted_and_ties_are_not();
    the_pool_has_as_many_as_asked();
    the_arena_keeps_what_is_put_into_it();
    return 0;
}
