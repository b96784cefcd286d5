/* The sending thread of a Pacer, without Python: what _pacer.c wraps. Included by _pacer.c only. */
#ifndef AGENTS_PACER_THREAD_H
#define AGENTS_PACER_THREAD_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL
#define MAX_BATCH 1024 /* the kernel's limit on one sendmmsg */
#define RETRY_NS 200000LL

typedef struct {
    int fd;      /* our own duplicate of the caller's socket */
    int done_fd; /* eventfd: readable once the thread has nothing left to send */
    bool realtime;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* to the thread: work, cancel, quit */
    pthread_cond_t idle; /* from the thread: `running` has become false */

    /* Guarded by lock. */
    bool running;
    bool cancelled;
    bool quit;
    size_t count;
    size_t sent;
    uint64_t retries;
    int error;

    /* Written while the thread is idle, read by the thread while it runs. */
    struct mmsghdr *messages;
    struct iovec *vectors;
    struct sockaddr_in *destinations; /* of the copies of each datagram; unused on a connected socket */
    int64_t *due_ns;
    int64_t *lateness_ns; /* written by the thread; the first `sent` entries are valid */
    int64_t most_catch_up_ns; /* what is later than this stays so; negative: everything catches up */
    int64_t behind_ns;        /* by how much the schedule has moved for that; the thread's own while it runs */
} Sender;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static bool is_transient(int error)
{
    /* ECONNREFUSED is a connected socket's report about an earlier datagram: this one was not sent, but can be. */
    return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM || error == EINTR ||
           error == ECONNREFUSED;
}

/* Wait under lock until `due`, or until start(), cancel() or close() signals. */
static void wait_until(Sender *sender, int64_t due)
{
    struct timespec until = {.tv_sec = due / NANOSECONDS, .tv_nsec = due % NANOSECONDS};

    pthread_cond_timedwait(&sender->wake, &sender->lock, &until);
}

/* When a datagram is to be sent, by the schedule as it now stands. */
static int64_t send_time_ns(const Sender *sender, size_t number)
{
    return sender->due_ns[number] + sender->behind_ns;
}

/* After a long stall move the rest of the schedule, so that no more is sent at once than queues on the way can hold:
 * what is sent at the planned rates fits through links that are planned to be full, and what catches up does not. */
static void bound_catching_up(Sender *sender, int64_t now)
{
    int64_t late_ns = now - send_time_ns(sender, sender->sent);

    if (sender->most_catch_up_ns >= 0 && late_ns > sender->most_catch_up_ns)
        sender->behind_ns += late_ns - sender->most_catch_up_ns;
}

/* Send what is due from `next` on; called and returns with the lock held. Sets sender->sent, retries and error. */
static void send_due(Sender *sender, size_t next, int64_t now)
{
    unsigned int batch = 0;
    int accepted;
    int error;

    while (next + batch < sender->count && batch < MAX_BATCH && send_time_ns(sender, next + batch) <= now)
        batch++;

    pthread_mutex_unlock(&sender->lock);
    now = now_ns();
    accepted = sendmmsg(sender->fd, &sender->messages[next], batch, MSG_DONTWAIT);
    error = accepted < 0 ? errno : 0;
    if (error == EAGAIN || error == EWOULDBLOCK) {
        struct pollfd writable = {.fd = sender->fd, .events = POLLOUT};
        poll(&writable, 1, 1);
    }
    pthread_mutex_lock(&sender->lock);

    if (accepted > 0) {
        for (size_t i = next; i < next + (size_t)accepted; i++)
            sender->lateness_ns[i] = now - sender->due_ns[i];
        sender->sent = next + (size_t)accepted;
        return;
    }
    if (accepted < 0 && !is_transient(error)) {
        sender->error = error;
        return;
    }
    sender->retries++;
    if (error == ENOBUFS || error == ENOMEM)
        wait_until(sender, now_ns() + RETRY_NS);
}

static void *sender_thread(void *argument)
{
    Sender *sender = argument;
    const uint64_t one = 1;

    prctl(PR_SET_TIMERSLACK, 1UL);
    pthread_mutex_lock(&sender->lock);
    while (!sender->quit) {
        if (!sender->running) {
            pthread_cond_wait(&sender->wake, &sender->lock);
            continue;
        }
        if (sender->sent < sender->count && !sender->cancelled && sender->error == 0) {
            int64_t now = now_ns();
            int64_t when = send_time_ns(sender, sender->sent);
            if (when > now) {
                wait_until(sender, when);
            } else {
                bound_catching_up(sender, now);
                send_due(sender, sender->sent, now);
            }
            continue;
        }
        sender->running = false;
        /* Cannot fail: the counter was drained by start(), so one more fits. */
        if (write(sender->done_fd, &one, sizeof(one)) < 0)
            sender->error = errno;
        pthread_cond_broadcast(&sender->idle);
    }
    sender->running = false;
    pthread_cond_broadcast(&sender->idle);
    pthread_mutex_unlock(&sender->lock);
    return NULL;
}

static void make_locks(Sender *sender)
{
    pthread_mutexattr_t inherit;
    pthread_condattr_t clock;

    /* A low-priority caller that is preempted while it holds the lock must not hold up the thread. */
    pthread_mutexattr_init(&inherit);
    pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&sender->lock, &inherit);
    pthread_mutexattr_destroy(&inherit);
    pthread_cond_init(&sender->idle, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&sender->wake, &clock);
    pthread_condattr_destroy(&clock);
}

/* Make the thread, at real-time priority if that is asked for and allowed. Returns an error number. */
static int make_thread(Sender *sender, int priority)
{
    const struct sched_param parameters = {.sched_priority = priority};
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = EPERM;

    /* Signals are the interpreter's business: its main thread must get them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (priority > 0) {
        pthread_attr_init(&attributes);
        pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
        pthread_attr_setschedparam(&attributes, &parameters);
        error = pthread_create(&sender->thread, &attributes, sender_thread, sender);
        pthread_attr_destroy(&attributes);
        sender->realtime = error == 0;
    }
    if (error == EPERM)
        error = pthread_create(&sender->thread, NULL, sender_thread, sender);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Hand prepared work to the thread, which must be idle. */
static void begin_sending(Sender *sender)
{
    pthread_mutex_lock(&sender->lock);
    sender->behind_ns = 0;
    sender->retries = 0;
    sender->error = 0;
    sender->cancelled = false;
    sender->running = true;
    pthread_cond_signal(&sender->wake);
    pthread_mutex_unlock(&sender->lock);
}

/* Stop sending and wait until the thread is idle. */
static void stop_sending(Sender *sender)
{
    pthread_mutex_lock(&sender->lock);
    sender->cancelled = true;
    pthread_cond_signal(&sender->wake);
    while (sender->running)
        pthread_cond_wait(&sender->idle, &sender->lock);
    pthread_mutex_unlock(&sender->lock);
}

static void end_thread(Sender *sender)
{
    pthread_mutex_lock(&sender->lock);
    sender->quit = true;
    pthread_cond_signal(&sender->wake);
    pthread_mutex_unlock(&sender->lock);
    pthread_join(sender->thread, NULL);
}

/* Free the work; the thread must be idle. What was sent and how late stays readable. */
static void free_work(Sender *sender)
{
    free(sender->messages);
    free(sender->vectors);
    free(sender->destinations);
    free(sender->due_ns);
    sender->messages = NULL;
    sender->vectors = NULL;
    sender->destinations = NULL;
    sender->due_ns = NULL;
}

#endif
