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
 * machine, an operator), so the offset is sampled at every wake-up and each converted stamp must be plausible. */
struct stamp_clock {
    int64_t now_ns;              /* monotonic, at the latest sample */
    int64_t earliest_ns;         /* a frame read now cannot have arrived before this */
    int64_t offset_ns;           /* realtime - monotonic, at the latest sample */
    int64_t offset_before_ns;    /* the offset before the latest step */
    int64_t step_doubtful_until; /* until then a stamp may be from before the step or from after it */
    uint64_t refused;            /* stamps that were implausible and replaced by the time of reading */
};

/* Take in one reading of both clocks. The first one must be taken on a zeroed structure. */
void stamp_clock_update(struct stamp_clock *clock, int64_t monotonic_ns, int64_t realtime_ns);

/* Read both clocks and take the reading in. */
void stamp_clock_sample(struct stamp_clock *clock);

/* The monotonic time of a stamp; the time of the latest sample if the stamp is implausible or ambiguous. */
int64_t stamp_clock_convert(struct stamp_clock *clock, int64_t realtime_ns);

#endif
