#include "check.h"
#include "line.h"

static void an_idle_line_takes_a_frame_at_once(void)
{
    struct line line = {0};
    int64_t finish;
    CHECK(line_configure(&line, 8000, 0)); /* a byte a millisecond */
    CHECK(line_offer(&line, 5000000, 100, &finish) && finish == 105000000);
    CHECK(!line_offer(&line, 104999999, 100, &finish)); /* busy, and there is no queue */
    CHECK(line_offer(&line, 105000000, 1, &finish) && finish == 106000000);
    CHECK(line.high_water_bytes == 0);
    line_free(&line);
}

static void the_queue_holds_bytes_that_wait_and_no_more(void)
{
    struct line line = {0};
    int64_t finish;
    CHECK(line_configure(&line, 8000, 300));
    CHECK(line_offer(&line, 0, 1000, &finish)); /* in service until 1000 ms: not in the queue */
    CHECK(line_offer(&line, 0, 100, &finish) && finish == 1100000000);
    CHECK(line_offer(&line, 0, 200, &finish) && finish == 1300000000);
    CHECK(!line_offer(&line, 999999999, 1, &finish));
    CHECK(line_offer(&line, 1000000000, 100, &finish) && finish == 1400000000); /* the first one has begun */
    CHECK(!line_offer(&line, 1000000000, 1, &finish));
    CHECK(line.high_water_bytes == 300 && line.queued_bytes == 300);
    CHECK(line_offer(&line, 5000000000, 7, &finish) && finish == 5007000000);
    CHECK(line.queued_bytes == 0);
    line_free(&line);
}

static void rounding_does_not_add_up(void)
{
    struct line line = {0};
    int64_t finish = 0;
    CHECK(line_configure(&line, 3000000000, INT64_C(1) << 30)); /* 60 bytes: 160 ns; 61: 162.67 ns */
    for (int n = 0; n < 300000; n++)
        CHECK(line_offer(&line, 0, 61, &finish));
    CHECK(finish == 48800000);
    CHECK(line.queued_bytes == INT64_C(299999) * 61);
    line_free(&line);
}

static void a_change_keeps_the_times_of_accepted_frames(void)
{
    struct line line = {0};
    int64_t finish;
    CHECK(line_configure(&line, 8000, 1000));
    CHECK(line_offer(&line, 0, 100, &finish) && finish == 100000000);
    CHECK(line_offer(&line, 0, 100, &finish) && finish == 200000000);
    CHECK(line_configure(&line, 80000, 1 << 20)); /* ten times faster, and a queue that makes the array grow */
    CHECK(line_offer(&line, 0, 100, &finish) && finish == 210000000);
    CHECK(line.queued_bytes == 200);
    CHECK(line_offer(&line, 150000000, 100, &finish) && finish == 220000000);
    CHECK(line.queued_bytes == 200);
    CHECK(line_configure(&line, 80000, 0));
    CHECK(!line_offer(&line, 150000000, 1, &finish));
    CHECK(line_offer(&line, 220000000, 10, &finish) && finish == 221000000);
    line_free(&line);
}

int main(void)
{
    an_idle_line_takes_a_frame_at_once();
    the_queue_holds_bytes_that_wait_and_no_more();
    rounding_does_not_add_up();
    a_change_keeps_the_times_of_accepted_frames();
    return 0;
}
