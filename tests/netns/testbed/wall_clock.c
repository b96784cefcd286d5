/* Preloaded into every process of a run. Once the file that WALL_CLOCK_JUMPS names is there, each reading of the wall
 * clock is a day off, ahead and behind in turn.
 *
 * Not in the delayline program: it compares the wall clock with the kernel's stamps of arrival, which a real jump moves
 * as well, and this one does not (tests/unit/links/native/test_clock.c has its jumps). */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t jump(void)
{
    static _Thread_local int turn;
    const char *path = getenv("WALL_CLOCK_JUMPS");
    if (path == NULL || strcmp(program_invocation_short_name, "delayline") == 0 || access(path, F_OK) != 0)
        return 0;
    return ++turn % 2 ? 86400 : -86400;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) {
        int kept = errno;
        now->tv_sec += jump();
        errno = kept;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now != NULL)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
