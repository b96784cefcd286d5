#include "worker.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* How often to look at the rings while frames pass. A direction whose frames can be due sooner is eager: its arrivals
 * wake the worker. */
#define LOOK_EVERY_NS (400 * NS_PER_US)
/* A wake-up costs as much as sending two frames. Where they follow each other closely, on average, wait a little
 * longer than asked, and serve several frames at once. */
#define CROWDED_NS (150 * NS_PER_US)
#define CROWDED_SLACK_NS (20 * NS_PER_US)
/* After so long without a frame, stop looking and wait to be woken. */
#define QUIET_NS (5 * NS_PER_MS)
#define ERRAND_TIMEOUT_NS (10 * NS_PER_S)
/* Above agents that pace their sending, below the kernel's own threads. */
#define PRIORITY 50

static bool watch(int epoll, int fd, bool wanted)
{
    /* Edge-triggered: frames that stay in the ring would otherwise keep a packet socket readable. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (epoll_ctl(epoll, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0)
        return true;
    return errno == EEXIST || errno == ENOENT; /* it is so already */
}

bool worker_init(struct worker *worker)
{
    *worker = (struct worker){
        .any = epoll_create1(EPOLL_CLOEXEC),
        .eager = epoll_create1(EPOLL_CLOEXEC),
        .call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
    };
    return worker->any >= 0 && worker->eager >= 0 && worker->call >= 0 && watch(worker->any, worker->call, true) &&
           watch(worker->eager, worker->call, true);
}

void worker_free(struct worker *worker)
{
    close(worker->any);
    close(worker->eager);
    close(worker->call);
    free(worker->directions);
}

bool worker_add(struct worker *worker, struct direction *direction)
{
    struct direction **more = realloc(worker->directions, (worker->count + 1) * sizeof *more);
    if (!more)
        return false;
    worker->directions = more;
    more[worker->count++] = direction;
    return watch(worker->any, direction->in->fd, true);
}

bool worker_watch(struct worker *worker, const struct direction *direction)
{
    return watch(worker->eager, direction->in->fd, direction_least_delay_ns(direction) < LOOK_EVERY_NS);
}

static void sleep_until(int64_t wake_ns)
{
    struct timespec wake = {.tv_sec = wake_ns / NS_PER_S, .tv_nsec = wake_ns % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) != 0)
        continue;
}

/* Until then, or until something happens that the set watches. */
static void wait_until(int epoll, int64_t wake_ns)
{
    int64_t left = wake_ns - clock_monotonic_ns();
    if (left <= 0)
        return;
    struct timespec timeout = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
    struct epoll_event events[16];
    (void)epoll_pwait2(epoll, events, 16, wake_ns == INT64_MAX ? NULL : &timeout, NULL);
}

static void call(const struct worker *worker)
{
    uint64_t one = 1;
    while (write(worker->call, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void run_errand(struct worker *worker)
{
    struct errand *errand = atomic_exchange(&worker->errand, NULL);
    if (errand) {
        errand->run(errand->argument);
        sem_post(&errand->done);
    }
}

static void *serve(void *argument)
{
    struct worker *worker = argument;
    int64_t active_ns = clock_monotonic_ns(), before_ns = active_ns, interval_ns = 0;
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    while (!atomic_load(&worker->stop)) {
        run_errand(worker);
        stamp_clock_sample(&worker->clock);
        stamp_clock_begin_pass(&worker->clock);
        int64_t now_ns = worker->clock.now_ns, due_ns = INT64_MAX;
        bool any_eager = false;
        for (size_t i = 0; i < worker->count; i++) {
            if (direction_receive(worker->directions[i], &worker->clock))
                active_ns = now_ns;
            any_eager = any_eager || direction_least_delay_ns(worker->directions[i]) < LOOK_EVERY_NS;
        }
        for (size_t i = 0; i < worker->count; i++) {
            int64_t next_ns = direction_release(worker->directions[i]);
            due_ns = next_ns < due_ns ? next_ns : due_ns;
        }
        int64_t wake_ns = due_ns;
        interval_ns += (now_ns - before_ns - interval_ns) / 8;
        before_ns = now_ns;
        if (due_ns != INT64_MAX && interval_ns < CROWDED_NS)
            wake_ns += CROWDED_SLACK_NS;
        if (wake_ns > now_ns + LOOK_EVERY_NS)
            wake_ns = now_ns + LOOK_EVERY_NS;
        if (due_ns == INT64_MAX && now_ns - active_ns > QUIET_NS)
            wait_until(worker->any, INT64_MAX);
        else if (any_eager)
            wait_until(worker->eager, wake_ns);
        else
            sleep_until(wake_ns);
    }
    return NULL;
}

bool worker_start(struct worker *worker)
{
    if (pthread_create(&worker->thread, NULL, serve, worker) != 0)
        return false;
    worker->running = true;
    struct sched_param parameters = {.sched_priority = PRIORITY};
    worker->realtime = pthread_setschedparam(worker->thread, SCHED_FIFO, &parameters) == 0;
    return true;
}

void worker_stop(struct worker *worker)
{
    if (!worker->running)
        return;
    atomic_store(&worker->stop, true);
    call(worker);
    pthread_join(worker->thread, NULL);
    worker->running = false;
}

bool worker_send(struct worker *worker, void (*run)(void *argument), void *argument)
{
    if (!worker->running) {
        run(argument);
        return true;
    }
    struct errand errand = {.run = run, .argument = argument};
    sem_init(&errand.done, 0, 0);
    atomic_store(&worker->errand, &errand);
    call(worker);
    int64_t deadline_ns = clock_monotonic_ns() + ERRAND_TIMEOUT_NS;
    struct timespec deadline = {.tv_sec = deadline_ns / NS_PER_S, .tv_nsec = deadline_ns % NS_PER_S};
    int failed = sem_clockwait(&errand.done, CLOCK_MONOTONIC, &deadline);
    while (failed && errno == EINTR)
        failed = sem_clockwait(&errand.done, CLOCK_MONOTONIC, &deadline);
    return !failed;
}
