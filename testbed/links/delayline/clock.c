#include "clock.h"

#include <time.h>

/* Both clocks are disciplined alike, so their difference moves only by steps. Less than this is reading noise. */
#define STEP_NS (100 * NS_PER_US)
/* A frame is stamped before it waits for the softirq that puts it into the ring. */
#define SOFTIRQ_WAIT_NS (20 * NS_PER_MS)
/* Frames go on arriving while a pass reads the rings. */
#define LONGEST_PASS_NS (5 * NS_PER_MS)

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_monotonic_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

void stamp_clock_update(struct stamp_clock *clock, int64_t monotonic_ns, int64_t realtime_ns)
{
    int64_t offset = realtime_ns - monotonic_ns;
    bool first = clock->now_ns == 0;
    int64_t moved = first ? 0 : offset - clock->offset_ns;
    if (moved > STEP_NS || moved < -STEP_NS) {
        clock->offset_before_ns = clock->offset_ns;
        clock->step_doubtful_until = monotonic_ns + SOFTIRQ_WAIT_NS;
    }
    clock->offset_ns = offset;
    clock->now_ns = monotonic_ns;
}

void stamp_clock_begin_pass(struct stamp_clock *clock)
{
    clock->earliest_ns = (clock->pass_ns == 0 ? clock->now_ns : clock->pass_ns) - SOFTIRQ_WAIT_NS;
    clock->pass_ns = clock->now_ns;
}

void stamp_clock_sample(struct stamp_clock *clock)
{
    int64_t best_gap = INT64_MAX, monotonic = 0, realtime = 0;
    /* Being interrupted between the readings would look like a step: keep the tightest of a few. */
    for (int attempt = 0; attempt < 4 && best_gap > 2 * NS_PER_US; attempt++) {
        int64_t before = read_clock(CLOCK_MONOTONIC);
        int64_t real = read_clock(CLOCK_REALTIME);
        int64_t after = read_clock(CLOCK_MONOTONIC);
        if (after - before < best_gap) {
            best_gap = after - before;
            monotonic = before + (after - before) / 2;
            realtime = real;
        }
    }
    stamp_clock_update(clock, monotonic, realtime);
}

static bool plausible(const struct stamp_clock *clock, int64_t monotonic_ns)
{
    return monotonic_ns >= clock->earliest_ns && monotonic_ns <= clock->now_ns + LONGEST_PASS_NS;
}

bool stamp_clock_convert(const struct stamp_clock *clock, int64_t realtime_ns, int64_t *monotonic_ns)
{
    int64_t with_current = realtime_ns - clock->offset_ns;
    int64_t with_before = realtime_ns - clock->offset_before_ns;
    bool fits_current = plausible(clock, with_current);
    bool doubtful = clock->now_ns < clock->step_doubtful_until;
    bool fits_before = doubtful && plausible(clock, with_before);
    *monotonic_ns = fits_current ? with_current : with_before;
    return fits_current != fits_before;
}

int64_t stamp_clock_arrival_ns(struct stamp_clock *clock, int64_t realtime_ns)
{
    int64_t arrival_ns;
    if (stamp_clock_convert(clock, realtime_ns, &arrival_ns))
        return arrival_ns;
    /* This thread may have been held up since the sample: the frame came later than the sample, by more than a pass
     * takes, and the sample's time would let it out before its time. */
    stamp_clock_sample(clock);
    if (stamp_clock_convert(clock, realtime_ns, &arrival_ns))
        return arrival_ns;
    clock->refused++;
    return clock->now_ns;
}
