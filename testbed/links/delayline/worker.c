#include "worker.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Look at the rings this often: a frame is then seen before it is due, as eager directions are those with less delay. */
#define LOOK_EVERY_NS (400 * NS_PER_US)
#define LOOK_EVERY_WHEN_WOKEN_NS (10 * NS_PER_MS)
#define ERRAND_TIMEOUT_NS (10 * NS_PER_S)
/* Above agents that pace their sending, below the kernel's own threads. */
#define PRIORITY 50

_Static_assert(LOOK_EVERY_NS < EAGER_BELOW_NS, "a frame could be seen too late");

bool worker_init(struct worker *worker)
{
    *worker = (struct worker){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    return worker->epoll >= 0;
}

void worker_free(struct worker *worker)
{
    close(worker->epoll);
    free(worker->directions);
}

bool worker_add(struct worker *worker, struct direction *direction)
{
    struct direction **more = realloc(worker->directions, (worker->count + 1) * sizeof *more);
    if (!more)
        return false;
    worker->directions = more;
    more[worker->count++] = direction;
    return true;
}

void worker_watch(struct worker *worker, const struct direction *direction)
{
    /* Edge-triggered: frames that stay in the ring would otherwise keep the socket readable. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int change = direction_is_eager(direction) ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    (void)epoll_ctl(worker->epoll, change, direction->in->fd, &event); /* fails if it is so already */
}

static void sleep_until(int64_t wake_ns)
{
    struct timespec wake = {.tv_sec = wake_ns / NS_PER_S, .tv_nsec = wake_ns % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) != 0)
        continue;
}

/* Until then, or until a frame arrives at an eager direction. */
static void wait_until(const struct worker *worker, int64_t wake_ns)
{
    int64_t left = wake_ns - clock_monotonic_ns();
    if (left <= 0)
        return;
    struct timespec timeout = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
    struct epoll_event events[16];
    (void)epoll_pwait2(worker->epoll, events, 16, &timeout, NULL);
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
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    while (!atomic_load(&worker->stop)) {
        run_errand(worker);
        stamp_clock_sample(&worker->clock);
        bool any_eager = false, all_eager = true;
        for (size_t i = 0; i < worker->count; i++) {
            direction_receive(worker->directions[i], &worker->clock);
            any_eager |= direction_is_eager(worker->directions[i]);
            all_eager &= direction_is_eager(worker->directions[i]);
        }
        int64_t wake_ns = worker->clock.now_ns + (all_eager ? LOOK_EVERY_WHEN_WOKEN_NS : LOOK_EVERY_NS);
        for (size_t i = 0; i < worker->count; i++) {
            int64_t next_ns = direction_release(worker->directions[i]);
            if (next_ns < wake_ns)
                wake_ns = next_ns;
        }
        if (any_eager)
            wait_until(worker, wake_ns);
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
    int64_t deadline_ns = clock_monotonic_ns() + ERRAND_TIMEOUT_NS;
    struct timespec deadline = {.tv_sec = deadline_ns / NS_PER_S, .tv_nsec = deadline_ns % NS_PER_S};
    int failed = sem_clockwait(&errand.done, CLOCK_MONOTONIC, &deadline);
    while (failed && errno == EINTR)
        failed = sem_clockwait(&errand.done, CLOCK_MONOTONIC, &deadline);
    return !failed;
}
