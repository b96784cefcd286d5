#include "stamps.h"

#include <string.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000)
/* A datagram is stamped before it waits for the softirq that brings it to the socket. */
#define SOFTIRQ_WAIT_NS (SECOND_NS / 50)
#define CLOSE_NS INT64_C(2000)
#define ATTEMPTS 4

static int64_t read_clock(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

int64_t tb_monotonic_ns(void) { return read_clock(CLOCK_MONOTONIC); }

void tb_read_clocks(struct tb_stamps *stamps) {
    int64_t closest_ns = INT64_MAX;
    /* What comes between the two readings would move every arrival: keep the closest of a few. */
    for (int i = 0; i < ATTEMPTS && closest_ns > CLOSE_NS; i++) {
        int64_t before_ns = tb_monotonic_ns(), wall_ns = read_clock(CLOCK_REALTIME), after_ns = tb_monotonic_ns();
        stamps->now_ns = after_ns;
        if (after_ns - before_ns >= closest_ns) continue;
        closest_ns = after_ns - before_ns;
        stamps->offset_ns = wall_ns - (before_ns + closest_ns / 2);
    }
}

int64_t tb_arrival_ns(const struct tb_stamps *stamps, struct msghdr *message) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
        struct timespec stamp;
        memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
        int64_t arrival_ns = stamp.tv_sec * SECOND_NS + stamp.tv_nsec - stamps->offset_ns;
        if (arrival_ns >= stamps->empty_ns - SOFTIRQ_WAIT_NS && arrival_ns <= stamps->now_ns) return arrival_ns;
    }
    return stamps->now_ns;
}
