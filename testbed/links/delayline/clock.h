/* Time: everything runs on CLOCK_MONOTONIC; the kernel's arrival stamps are CLOCK_REALTIME and are converted here. */
#ifndef DELAYLINE_CLOCK_H
#define DELAYLINE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

int64_t clock_monotonic_ns(void);

/* How wall-clock stamps map to the monotonic clock. The wall clock can be stepped at any moment (NTP, a resumed
 * machine, an operator), so the offset is sampled at every pass over the rings and each converted stamp must be
 * plausible. */
struct stamp_clock {
    int64_t now_ns;              /* monotonic, at the latest sample */
    int64_t pass_ns;             /* monotonic, when the present pass began */
    int64_t earliest_ns;         /* a frame read now cannot have arrived before this */
    int64_t offset_ns;           /* realtime - monotonic, at the latest sample */
    int64_t offset_before_ns;    /* the offset before the latest step */
    int64_t step_doubtful_until; /* until then a stamp may be from before the step or from after it */
    uint64_t refused;            /* stamps that were implausible and replaced by the time of reading */
};

/* Take in one reading of both clocks. The first one must be taken on a zeroed structure. */
void stamp_clock_update(struct stamp_clock *clock, int64_t monotonic_ns, int64_t realtime_ns);

/* The latest sample begins a pass: what is read from now on was not there when the pass before began. */
void stamp_clock_begin_pass(struct stamp_clock *clock);

/* Read both clocks and take the reading in. */
void stamp_clock_sample(struct stamp_clock *clock);

/* The monotonic time of a stamp. False: it is implausible by the latest sample, or ambiguous. */
bool stamp_clock_convert(const struct stamp_clock *clock, int64_t realtime_ns, int64_t *monotonic_ns);

/* When a frame arrived that is being read now, by its stamp; if the stamp stays implausible with a new sample, now. */
int64_t stamp_clock_arrival_ns(struct stamp_clock *clock, int64_t realtime_ns);

#endif
