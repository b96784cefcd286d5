/* One direction of a link: frames come from one port, go through the line, and leave by the other port. */
#ifndef DELAYLINE_DIRECTION_H
#define DELAYLINE_DIRECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "held.h"
#include "histogram.h"
#include "impairments.h"
#include "line.h"
#include "port.h"
#include "settings.h"

struct counters {
    uint64_t frames_in, bytes_in;
    uint64_t frames_out, bytes_out;
    uint64_t dropped_queue, dropped_loss;
    uint64_t dropped_overflow; /* found the packet ring full: never seen, so not in bytes_in */
    uint64_t dropped_room;     /* no memory left to hold it */
    uint64_t dropped_send;     /* the other end did not take it in time */
    uint64_t dropped_down;     /* in flight when the link went down, or came after */
    uint64_t dropped_cut;      /* longer than a frame can be */
    uint64_t duplicated, corrupted, reordered;
    uint64_t send_retries;
    int64_t worst_lateness_ns;
};

struct direction {
    struct port *in, *out;
    struct settings settings;
    struct line line;
    struct impairments impairments;
    struct held_queue held;
    struct pool pool;
    struct frame **in_slot; /* per slot of the ring: the frame that stays there */
    struct arena arena;
    int64_t last_arrival_ns, last_due_ns;
    int64_t retry_at_ns;
    bool down;
    struct counters counters;
    struct histogram lateness;
};

/* Memory for a direction whose ports are open; `arena_bytes` bounds what `direction_apply` can grant later. */
bool direction_init(struct direction *direction, struct port *in, struct port *out, size_t arena_bytes);
void direction_free(struct direction *direction);

/* Change what `change` names. Frames on their way keep their times. False, with one line in `error`: nothing changed. */
bool direction_apply(struct direction *direction, const struct settings *change, char *error, size_t error_size);

/* The least delay that a frame can have after its arrival: when somebody must have looked for it. */
static inline int64_t direction_least_delay_ns(const struct direction *direction)
{
    return direction->settings.delay_ns - direction->settings.jitter_ns;
}

/* Take in what has arrived. True: there was something. */
bool direction_receive(struct direction *direction, struct stamp_clock *clock);

/* Send what is due. Returns when to call again; INT64_MAX when nothing is held. */
int64_t direction_release(struct direction *direction);

/* Lose everything on its way, and while down everything that comes. */
void direction_set_down(struct direction *direction, bool down);

#endif
