#include <math.h>
#include <string.h>

#include "check.h"
#include "histogram.h"
#include "impairments.h"

enum { FRAMES = 200000 };

static void certain_and_impossible(void)
{
    struct impairments impairments = {0};
    struct settings none = {0};
    struct settings all = {.loss = 1, .duplicate = 1, .corrupt = 1};
    impairments_seed(&impairments, 3);
    for (int n = 0; n < 1000; n++) {
        struct fate fate = impairments_next(&impairments, &none);
        CHECK(!fate.lost && !fate.duplicated && !fate.corrupted && fate.jitter_ns == 0);
        fate = impairments_next(&impairments, &all);
        CHECK(fate.lost && fate.duplicated && fate.corrupted);
    }
}

static void near(double measured, double asked, double deviation)
{
    CHECK(fabs(measured - asked) <= 5 * deviation);
}

static void loss_has_its_probability_and_its_pattern_is_its_own(void)
{
    struct impairments alone = {0}, among_others = {0}, other_seed = {0};
    struct settings loss = {.loss = 0.02};
    struct settings more = {.loss = 0.02, .duplicate = 0.5, .corrupt = 0.5, .jitter_ns = 1000};
    impairments_seed(&alone, 11);
    impairments_seed(&among_others, 11);
    impairments_seed(&other_seed, 12);
    int lost = 0, differs = 0;
    for (int n = 0; n < FRAMES; n++) {
        bool is_lost = impairments_next(&alone, &loss).lost;
        CHECK(impairments_next(&among_others, &more).lost == is_lost);
        differs += impairments_next(&other_seed, &loss).lost != is_lost;
        lost += is_lost;
    }
    near(lost, FRAMES * 0.02, sqrt(FRAMES * 0.02 * 0.98));
    CHECK(differs > 1000);
}

static void bursts_are_as_long_and_as_frequent_as_asked(void)
{
    struct impairments impairments = {0};
    struct settings settings = {.burst_enter = 0.01, .burst_leave = 0.2, .burst_loss = 1};
    impairments_seed(&impairments, 5);
    int lost = 0, bursts = 0;
    bool before = false;
    for (int n = 0; n < FRAMES; n++) {
        bool now = impairments_next(&impairments, &settings).lost;
        lost += now;
        bursts += now && !before;
        before = now;
    }
    /* Stationary: in a burst for enter / (enter + leave) of the time; mean burst 1 / leave frames. */
    near(bursts, FRAMES * 0.01 * 0.2 / 0.21, sqrt(FRAMES * 0.01));
    near((double)lost / bursts, 5, 5 / sqrt(bursts));
}

static void jitter_is_uniform_around_zero(void)
{
    struct impairments impairments = {0};
    struct settings settings = {.jitter_ns = 1000000};
    impairments_seed(&impairments, 5);
    double sum = 0, squares = 0;
    for (int n = 0; n < FRAMES; n++) {
        int64_t jitter = impairments_next(&impairments, &settings).jitter_ns;
        CHECK(jitter >= -1000000 && jitter <= 1000000);
        sum += (double)jitter;
        squares += (double)jitter * (double)jitter;
    }
    double deviation = 1000000 / sqrt(3);
    near(sum / FRAMES, 0, deviation / sqrt(FRAMES));
    near(sqrt(squares / FRAMES), deviation, deviation / sqrt(FRAMES));
}

static void buckets_are_narrow_and_in_order(void)
{
    unsigned before = 0;
    for (int64_t ns = 1; ns < INT64_C(1) << 40; ns += ns / 50 + 1) {
        unsigned bucket = histogram_bucket(ns);
        CHECK(bucket >= before && bucket <= before + 1 && bucket < HISTOGRAM_BUCKETS);
        before = bucket;
    }
    CHECK(histogram_bucket(-5) == 0 && histogram_bucket(INT64_MAX) == HISTOGRAM_BUCKETS - 1);
    CHECK(histogram_bucket(1000) == histogram_bucket(1023) && histogram_bucket(1023) < histogram_bucket(1024));
}

int main(void)
{
    certain_and_impossible();
    loss_has_its_probability_and_its_pattern_is_its_own();
    bursts_are_as_long_and_as_frequent_as_asked();
    jitter_is_uniform_around_zero();
    buckets_are_narrow_and_in_order();
    return 0;
}
