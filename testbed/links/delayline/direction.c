#include "direction.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECEIVE_BATCH 256
/* Copying this little costs less than keeping a ring slot. */
#define SMALL_FRAME_BYTES 512
/* The kernel fills slots in order, so these many ahead of it are kept free for what arrives between two looks at the
 * ring: a frame that stays in one of them moves to the arena. */
#define SLOTS_KEPT_FREE 192U
/* The other end is busy, not gone: try again, for so long. */
#define RETRY_NS (50 * NS_PER_US)
#define RETRY_FOR_NS (20 * NS_PER_MS)
/* Frames come out of an overloaded line later than asked; this much line rate of memory is for them. */
#define OVERLOAD_NS (50 * NS_PER_MS)
#define SMALLEST_BLOCK_BYTES 80

bool direction_init(struct direction *direction, struct port *in, struct port *out, size_t arena_bytes)
{
    size_t most_frames = in->slots + arena_bytes / SMALLEST_BLOCK_BYTES;
    *direction = (struct direction){.in = in, .out = out};
    impairments_seed(&direction->impairments, 0);
    direction->in_slot = calloc(in->slots, sizeof(struct frame *));
    return direction->in_slot && arena_init(&direction->arena, arena_bytes) &&
           pool_init(&direction->pool, most_frames) && held_queue_init(&direction->held, most_frames);
}

void direction_free(struct direction *direction)
{
    line_free(&direction->line);
    held_queue_free(&direction->held);
    pool_free(&direction->pool);
    arena_free(&direction->arena);
    free(direction->in_slot);
}

#define TAKE(bit, member)                  \
    do {                                   \
        if (change->given & (unsigned)(bit)) \
            merged.member = change->member; \
    } while (0)

static struct settings merge(struct settings merged, const struct settings *change)
{
    TAKE(SETTING_DELAY_NS, delay_ns);
    TAKE(SETTING_RATE_BPS, rate_bps);
    TAKE(SETTING_QUEUE_BYTES, queue_bytes);
    TAKE(SETTING_SEED, seed);
    TAKE(SETTING_LOSS, loss);
    TAKE(SETTING_BURST_ENTER, burst_enter);
    TAKE(SETTING_BURST_LEAVE, burst_leave);
    TAKE(SETTING_BURST_LOSS, burst_loss);
    TAKE(SETTING_BURST_LOSS_OUTSIDE, burst_loss_outside);
    TAKE(SETTING_JITTER_NS, jitter_ns);
    TAKE(SETTING_REORDER, reorder);
    TAKE(SETTING_DUPLICATE, duplicate);
    TAKE(SETTING_CORRUPT, corrupt);
    merged.given |= change->given;
    return merged;
}

/* Bytes that can be on their way at once, by the physics asked for. */
static double line_bytes(const struct settings *settings)
{
    double ns = (double)(settings->delay_ns + settings->jitter_ns + OVERLOAD_NS);
    return (double)settings->rate_bps / 8 * ns / (double)NS_PER_S + (double)settings->queue_bytes;
}

bool direction_apply(struct direction *direction, const struct settings *change, char *error, size_t error_size)
{
    struct settings merged = merge(direction->settings, change);
    if (merged.rate_bps <= 0) {
        snprintf(error, error_size, "rate_bps is missing");
        return false;
    }
    if (merged.jitter_ns > merged.delay_ns) {
        snprintf(error, error_size, "jitter_ns %lld is above delay_ns %lld", (long long)merged.jitter_ns,
                 (long long)merged.delay_ns);
        return false;
    }
    /* Small frames need up to half as much again for their bookkeeping. */
    if (line_bytes(&merged) * 1.5 > (double)direction->arena.size) {
        snprintf(error, error_size, "needs memory for %.0f bytes on their way, and has it for %.0f", line_bytes(&merged),
                 (double)direction->arena.size / 1.5);
        return false;
    }
    if (!line_configure(&direction->line, merged.rate_bps, merged.queue_bytes)) {
        snprintf(error, error_size, "out of memory");
        return false;
    }
    if (change->given & SETTING_SEED)
        impairments_seed(&direction->impairments, merged.seed);
    direction->settings = merged;
    return true;
}

/* Give back what holds the frame's bytes. */
static void release_bytes(struct direction *direction, const struct frame *frame)
{
    if (frame->slot == NOT_IN_RING) {
        arena_give_back(&direction->arena, frame->data);
    } else {
        direction->in_slot[frame->slot] = NULL;
        port_give_back(direction->in, frame->slot);
    }
}

/* Move a frame out of the ring. False: the arena is full, it stays. */
static bool move_to_arena(struct direction *direction, struct frame *frame)
{
    uint8_t *copy = arena_take(&direction->arena, frame->bytes);
    if (!copy)
        return false;
    memcpy(copy, frame->data, frame->bytes);
    release_bytes(direction, frame);
    frame->data = copy;
    frame->slot = NOT_IN_RING;
    return true;
}

static void keep_slots_free(struct direction *direction)
{
    const struct port *in = direction->in;
    struct frame *ahead = direction->in_slot[(in->next + SLOTS_KEPT_FREE) % in->slots];
    if (ahead)
        move_to_arena(direction, ahead);
}

/* The same frame once more. NULL: no room. */
static struct frame *make_twin(struct direction *direction, const struct frame *frame)
{
    struct frame *twin = pool_take(&direction->pool);
    uint8_t *copy = twin ? arena_take(&direction->arena, frame->bytes) : NULL;
    if (!copy) {
        if (twin)
            pool_give_back(&direction->pool, twin);
        return NULL;
    }
    memcpy(copy, frame->data, frame->bytes);
    *twin = (struct frame){.data = copy, .bytes = frame->bytes, .slot = NOT_IN_RING};
    return twin;
}

static void corrupt(struct frame *frame, uint64_t random)
{
    uint64_t bit = random % ((uint64_t)frame->bytes * 8);
    frame->data[bit / 8] ^= (uint8_t)(1U << (bit % 8));
}

static int64_t due_time(struct direction *direction, int64_t finish_ns, int64_t jitter_ns)
{
    int64_t due_ns = finish_ns + direction->settings.delay_ns + jitter_ns;
    if (direction->settings.reorder)
        return due_ns;
    if (due_ns < direction->last_due_ns)
        due_ns = direction->last_due_ns;
    return direction->last_due_ns = due_ns;
}

/* Send the frame down the line. False: it goes no further, and `counter` says why. */
static bool admit(struct direction *direction, const struct arrival *arrival, int64_t arrival_ns, uint64_t **counter)
{
    struct counters *counters = &direction->counters;
    struct fate fate = impairments_next(&direction->impairments, &direction->settings);
    int64_t finish_ns;
    *counter = &counters->dropped_queue;
    if (!line_offer(&direction->line, arrival_ns, arrival->bytes, &finish_ns))
        return false;
    *counter = &counters->dropped_loss; /* on its way: it has used its time on the line */
    if (fate.lost)
        return false;
    *counter = &counters->dropped_room;
    struct frame *frame = pool_take(&direction->pool);
    if (!frame)
        return false;
    *frame = (struct frame){.data = arrival->data, .bytes = arrival->bytes, .slot = arrival->slot};
    direction->in_slot[arrival->slot] = frame;
    if (fate.corrupted) {
        corrupt(frame, fate.corrupt_bit);
        counters->corrupted++;
    }
    if (frame->bytes <= SMALL_FRAME_BYTES)
        move_to_arena(direction, frame);
    int64_t due_ns = due_time(direction, finish_ns, fate.jitter_ns);
    counters->reordered += held_queue_put(&direction->held, due_ns, frame) > 0;
    struct frame *twin = fate.duplicated ? make_twin(direction, frame) : NULL;
    if (twin) {
        held_queue_put(&direction->held, due_ns, twin);
        counters->duplicated++;
    }
    return true;
}

bool direction_receive(struct direction *direction, struct stamp_clock *clock)
{
    struct counters *counters = &direction->counters;
    struct arrival arrival;
    int n = 0;
    for (; n < RECEIVE_BATCH && port_read(direction->in, &arrival); n++) {
        keep_slots_free(direction);
        counters->frames_in++;
        counters->bytes_in += arrival.bytes;
        uint64_t *counter = !arrival.whole ? &counters->dropped_cut : &counters->dropped_down;
        bool admitted = false;
        if (arrival.whole && !direction->down) {
            int64_t arrival_ns = stamp_clock_arrival_ns(clock, arrival.stamp_ns);
            if (arrival_ns < direction->last_arrival_ns)
                arrival_ns = direction->last_arrival_ns;
            direction->last_arrival_ns = arrival_ns;
            admitted = admit(direction, &arrival, arrival_ns, &counter);
        }
        if (!admitted) {
            ++*counter;
            port_give_back(direction->in, arrival.slot);
        }
    }
    return n > 0;
}

static void forget_front(struct direction *direction)
{
    struct frame *frame = held_queue_at(&direction->held, 0)->frame;
    release_bytes(direction, frame);
    pool_give_back(&direction->pool, frame);
    held_queue_drop_front(&direction->held);
}

static void sent(struct direction *direction, unsigned count, int64_t now_ns)
{
    struct counters *counters = &direction->counters;
    for (unsigned i = 0; i < count; i++) {
        const struct held *first = held_queue_at(&direction->held, 0);
        int64_t lateness = now_ns - first->due_ns;
        counters->frames_out++;
        counters->bytes_out += first->frame->bytes;
        if (lateness > counters->worst_lateness_ns)
            counters->worst_lateness_ns = lateness;
        histogram_add(&direction->lateness, lateness, 1);
        forget_front(direction);
    }
}

static void drop_front(struct direction *direction, uint64_t *counter)
{
    forget_front(direction);
    ++*counter;
}

/* The first frame was refused: keep it for another try if that can help. */
static void refused(struct direction *direction, int reason, int64_t now_ns)
{
    bool busy = reason == EAGAIN || reason == ENOBUFS || reason == EINTR || reason == ENOMEM;
    if (busy && now_ns - held_queue_at(&direction->held, 0)->due_ns < RETRY_FOR_NS) {
        direction->counters.send_retries++;
        direction->retry_at_ns = now_ns + RETRY_NS;
        return;
    }
    drop_front(direction, &direction->counters.dropped_send);
}

int64_t direction_release(struct direction *direction)
{
    struct held_queue *held = &direction->held;
    if (held->count == 0)
        return INT64_MAX;
    int64_t now_ns = clock_monotonic_ns();
    unsigned due = 0;
    while (due < held->count && due < PORT_BATCH && held_queue_at(held, due)->due_ns <= now_ns)
        due++;
    if (due > 0 && direction->retry_at_ns <= now_ns) {
        int count = port_send(direction->out, held, due);
        int reason = errno;
        now_ns = clock_monotonic_ns(); /* late frames count until they are really gone */
        if (count > 0)
            sent(direction, (unsigned)count, now_ns);
        else
            refused(direction, reason, now_ns);
    }
    if (held->count == 0)
        return INT64_MAX;
    int64_t next_ns = held_queue_at(held, 0)->due_ns;
    return next_ns > direction->retry_at_ns ? next_ns : direction->retry_at_ns;
}

void direction_set_down(struct direction *direction, bool down)
{
    direction->down = down;
    while (down && direction->held.count > 0)
        drop_front(direction, &direction->counters.dropped_down);
}
