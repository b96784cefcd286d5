#include <time.h>

#include "check.h"
#include "clock.h"

#define WALL (INT64_C(1700000000) * NS_PER_S)
#define BEGIN (100 * NS_PER_S)

static struct stamp_clock started(void)
{
    struct stamp_clock clock = {0};
    stamp_clock_update(&clock, BEGIN, WALL);
    stamp_clock_begin_pass(&clock);
    return clock;
}

static void pass(struct stamp_clock *clock, int64_t monotonic_ns, int64_t realtime_ns)
{
    stamp_clock_update(clock, monotonic_ns, realtime_ns);
    stamp_clock_begin_pass(clock);
}

static bool converts(const struct stamp_clock *clock, int64_t realtime_ns, int64_t wanted_ns)
{
    int64_t monotonic_ns;
    return stamp_clock_convert(clock, realtime_ns, &monotonic_ns) && monotonic_ns == wanted_ns;
}

static bool doubts(const struct stamp_clock *clock, int64_t realtime_ns)
{
    int64_t monotonic_ns;
    return !stamp_clock_convert(clock, realtime_ns, &monotonic_ns);
}

static void stamps_become_monotonic(void)
{
    struct stamp_clock clock = started();
    pass(&clock, BEGIN + 400000, WALL + 400000);
    CHECK(converts(&clock, WALL + 123456, BEGIN + 123456));
    CHECK(converts(&clock, WALL - 3 * NS_PER_MS, BEGIN - 3 * NS_PER_MS)); /* it waited for a softirq */
    CHECK(converts(&clock, WALL + 500000, BEGIN + 500000));               /* it came while this pass was reading */
}

static void implausible_stamps_are_doubted(void)
{
    struct stamp_clock clock = started();
    pass(&clock, BEGIN + 400000, WALL + 400000);
    CHECK(doubts(&clock, WALL + 10 * NS_PER_MS));
    CHECK(doubts(&clock, WALL - NS_PER_S));
    CHECK(doubts(&clock, 0));
    CHECK(doubts(&clock, INT64_MAX));
}

static void a_stepped_wall_clock_moves_no_frame(int64_t step)
{
    struct stamp_clock clock = started();
    int64_t now = BEGIN + 400000;
    pass(&clock, now, WALL + 400000 + step);
    CHECK(converts(&clock, WALL + 100000, BEGIN + 100000));        /* stamped before the step */
    CHECK(converts(&clock, WALL + 300000 + step, BEGIN + 300000)); /* and after it */
    for (int64_t later = now; later < now + 100 * NS_PER_MS; later += 400000)
        pass(&clock, later, WALL + later - BEGIN + step);
    CHECK(converts(&clock, WALL + clock.now_ns - BEGIN + step - 1000, clock.now_ns - 1000));
    CHECK(doubts(&clock, WALL + clock.now_ns - BEGIN)); /* from before the step: too late by now */
}

static void a_small_step_is_ambiguous(void)
{
    struct stamp_clock clock = started();
    pass(&clock, BEGIN + 400000, WALL + 400000 + 2 * NS_PER_MS);
    CHECK(doubts(&clock, WALL + 100000));
}

static void another_sample_in_a_pass_forgets_no_frame(void)
{
    struct stamp_clock clock = started();
    pass(&clock, BEGIN + 400000, WALL + 400000);
    CHECK(doubts(&clock, WALL + 300 * NS_PER_MS));
    stamp_clock_update(&clock, BEGIN + 301 * NS_PER_MS, WALL + 301 * NS_PER_MS);
    CHECK(converts(&clock, WALL + 300 * NS_PER_MS, BEGIN + 300 * NS_PER_MS));
    CHECK(converts(&clock, WALL + 100000, BEGIN + 100000));
    /* Nor does the next pass: this ring may have been read before the second sample. */
    pass(&clock, BEGIN + 302 * NS_PER_MS, WALL + 302 * NS_PER_MS);
    CHECK(converts(&clock, WALL + 500000, BEGIN + 500000));
}

static int64_t wall_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* A pass that began a second ago, by this machine's clocks. */
static struct stamp_clock held_up(void)
{
    struct stamp_clock clock = {0};
    pass(&clock, clock_monotonic_ns() - NS_PER_S, wall_clock_ns() - NS_PER_S);
    return clock;
}

static void a_frame_that_came_while_the_reader_was_held_up_is_not_early(void)
{
    struct stamp_clock clock = held_up();
    int64_t before_ns = clock_monotonic_ns();
    int64_t arrival_ns = stamp_clock_arrival_ns(&clock, wall_clock_ns());
    CHECK(arrival_ns > before_ns - NS_PER_MS); /* the clocks are not read at one instant */
    CHECK(arrival_ns <= clock.now_ns);
    CHECK(clock.refused == 0);
}

static void a_stamp_that_stays_implausible_counts_as_now(void)
{
    struct stamp_clock clock = held_up();
    int64_t before_ns = clock_monotonic_ns();
    CHECK(stamp_clock_arrival_ns(&clock, wall_clock_ns() - 3600 * NS_PER_S) >= before_ns);
    CHECK(stamp_clock_arrival_ns(&clock, wall_clock_ns() + 3600 * NS_PER_S) >= before_ns);
    CHECK(clock.refused == 2);
}

int main(void)
{
    stamps_become_monotonic();
    implausible_stamps_are_doubted();
    a_stepped_wall_clock_moves_no_frame(NS_PER_S);
    a_stepped_wall_clock_moves_no_frame(-NS_PER_S);
    a_stepped_wall_clock_moves_no_frame(3600 * NS_PER_S);
    a_small_step_is_ambiguous();
    another_sample_in_a_pass_forgets_no_frame();
    a_frame_that_came_while_the_reader_was_held_up_is_not_early();
    a_stamp_that_stays_implausible_counts_as_now();
    return 0;
}
