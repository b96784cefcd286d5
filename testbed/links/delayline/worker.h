/* A thread that serves some of the directions. Nobody else touches them while it runs: who wants something of them
 * sends it on an errand. */
#ifndef DELAYLINE_WORKER_H
#define DELAYLINE_WORKER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "clock.h"
#include "direction.h"

/* Run in the worker's thread between two passes. */
struct errand {
    void (*run)(void *argument);
    void *argument;
    sem_t done;
};

struct worker {
    pthread_t thread;
    bool running;
    bool realtime; /* has real-time priority */
    struct direction **directions;
    size_t count;
    struct stamp_clock clock;
    int any;   /* epoll: all ports and calls */
    int eager; /* epoll: the ports of eager directions and calls */
    int call;  /* eventfd: somebody wants something */
    _Atomic(struct errand *) errand;
    atomic_bool stop;
};

bool worker_init(struct worker *worker);
void worker_free(struct worker *worker);

/* Before the start. False: no memory. */
bool worker_add(struct worker *worker, struct direction *direction);

/* Be woken by arrivals if the direction is eager; to be called when its settings have changed. */
bool worker_watch(struct worker *worker, const struct direction *direction);

/* Start the thread, with real-time priority if this process may. */
bool worker_start(struct worker *worker);
void worker_stop(struct worker *worker);

/* Have the function run where it may touch the worker's directions. False: the worker did not come to it in ten seconds,
 * and may still do so: the process must end. */
bool worker_send(struct worker *worker, void (*run)(void *argument), void *argument);

#endif
