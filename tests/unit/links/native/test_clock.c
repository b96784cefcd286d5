#include "check.h"
#include "clock.h"

#define WALL (INT64_C(1700000000) * NS_PER_S)
#define BEGIN (100 * NS_PER_S)

static struct stamp_clock started(void)
{
    struct stamp_clock clock = {0};
    stamp_clock_update(&clock, BEGIN, WALL);
    return clock;
}

static void stamps_become_monotonic(void)
{
    struct stamp_clock clock = started();
    stamp_clock_update(&clock, BEGIN + 400000, WALL + 400000);
    CHECK(stamp_clock_convert(&clock, WALL + 123456) == BEGIN + 123456);
    CHECK(stamp_clock_convert(&clock, WALL - 3 * NS_PER_MS) == BEGIN - 3 * NS_PER_MS); /* it waited for a softirq */
    CHECK(stamp_clock_convert(&clock, WALL + 500000) == BEGIN + 500000); /* it came while this pass was reading */
    CHECK(clock.refused == 0);
}

static void implausible_stamps_fall_back_to_now(void)
{
    struct stamp_clock clock = started();
    stamp_clock_update(&clock, BEGIN + 400000, WALL + 400000);
    CHECK(stamp_clock_convert(&clock, WALL + 10 * NS_PER_MS) == BEGIN + 400000);
    CHECK(stamp_clock_convert(&clock, WALL - NS_PER_S) == BEGIN + 400000);
    CHECK(stamp_clock_convert(&clock, 0) == BEGIN + 400000);
    CHECK(stamp_clock_convert(&clock, INT64_MAX) == BEGIN + 400000);
    CHECK(clock.refused == 4);
}

static void a_stepped_wall_clock_moves_no_frame(int64_t step)
{
    struct stamp_clock clock = started();
    int64_t now = BEGIN + 400000;
    stamp_clock_update(&clock, now, WALL + 400000 + step);
    CHECK(stamp_clock_convert(&clock, WALL + 100000) == BEGIN + 100000);        /* stamped before the step */
    CHECK(stamp_clock_convert(&clock, WALL + 300000 + step) == BEGIN + 300000); /* and after it */
    CHECK(clock.refused == 0);
    for (int64_t later = now; later < now + 100 * NS_PER_MS; later += 400000)
        stamp_clock_update(&clock, later, WALL + later - BEGIN + step);
    CHECK(stamp_clock_convert(&clock, WALL + clock.now_ns - BEGIN + step - 1000) == clock.now_ns - 1000);
    CHECK(stamp_clock_convert(&clock, WALL + clock.now_ns - BEGIN) == clock.now_ns); /* now an implausible one */
    CHECK(clock.refused == 1);
}

static void a_small_step_is_ambiguous_and_never_makes_a_frame_early(void)
{
    struct stamp_clock clock = started();
    stamp_clock_update(&clock, BEGIN + 400000, WALL + 400000 + 2 * NS_PER_MS);
    CHECK(stamp_clock_convert(&clock, WALL + 100000) == BEGIN + 400000);
    CHECK(clock.refused == 1);
}

int main(void)
{
    stamps_become_monotonic();
    implausible_stamps_fall_back_to_now();
    a_stepped_wall_clock_moves_no_frame(NS_PER_S);
    a_stepped_wall_clock_moves_no_frame(-NS_PER_S);
    a_stepped_wall_clock_moves_no_frame(3600 * NS_PER_S);
    a_small_step_is_ambiguous_and_never_makes_a_frame_early();
    return 0;
}
