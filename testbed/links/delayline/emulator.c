#include "emulator.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"
#include "direction.h"
#include "interfaces.h"
#include "port.h"

#define REPLY_BYTES 8192

/* Opening and closing a packet ring waits for every processor to pass by (RCU), 10 to 20 ms: the ends of all links do
 * so side by side, each in a thread. */
struct end {
    struct port port;
    char interface[IFNAMSIZ];
    uint32_t slots;
    pthread_t thread;
    bool opening, open;
    char error[200];
    uint64_t overflows; /* frames that found the ring full */
    uint64_t unseen;    /* frames that the kernel dropped before */
};

struct link {
    struct end ends[2];
    struct direction directions[2]; /* from a to b, from b to a */
    size_t arena_bytes[2];
    bool ready;
    struct worker *worker;
};

static void reply(const struct emulator *emulator, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void reply(const struct emulator *emulator, const char *format, ...)
{
    char text[REPLY_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text)
        length = (int)sizeof text - 1;
    while (send(emulator->control, text, (size_t)length, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

static bool have_run(struct worker *worker, void (*run)(void *argument), void *argument)
{
    if (worker_send(worker, run, argument))
        return true;
    fprintf(stderr, "delayline: a thread does not get to run\n");
    _exit(1);
}

static void out_of_memory(void)
{
    fprintf(stderr, "delayline: out of memory\n");
    _exit(1);
}

static void *open_end(void *argument)
{
    struct end *end = argument;
    end->open = port_open(&end->port, end->interface, end->slots, end->error, sizeof end->error);
    return NULL;
}

static void *close_end(void *argument)
{
    port_close(&((struct end *)argument)->port);
    return NULL;
}

static void add_link(struct emulator *emulator, const struct command *command)
{
    if (emulator->started) {
        reply(emulator, "error the links run already");
        return;
    }
    struct link **links = realloc(emulator->links, (emulator->count + 1) * sizeof *links);
    struct link *link = calloc(1, sizeof *link);
    if (!links || !link)
        out_of_memory();
    emulator->links = links;
    link->worker = &emulator->workers[emulator->count % WORKERS];
    links[emulator->count++] = link;
    memcpy(link->ends[0].interface, command->a, IFNAMSIZ);
    memcpy(link->ends[1].interface, command->b, IFNAMSIZ);
    link->ends[0].slots = (uint32_t)command->slots_forward;
    link->ends[1].slots = (uint32_t)command->slots_backward;
    link->arena_bytes[0] = (size_t)command->arena_forward;
    link->arena_bytes[1] = (size_t)command->arena_backward;
    for (int n = 0; n < 2; n++) {
        link->ends[n].opening = pthread_create(&link->ends[n].thread, NULL, open_end, &link->ends[n]) == 0;
        if (!link->ends[n].opening)
            out_of_memory();
    }
    reply(emulator, "ok");
}

static void wait_for_ends(struct link *link)
{
    for (int n = 0; n < 2; n++) {
        if (link->ends[n].opening)
            pthread_join(link->ends[n].thread, NULL);
        link->ends[n].opening = false;
    }
}

/* Wait until the link's ends are open, and get its directions ready. The reason why not, or NULL. */
static const char *make_ready(struct link *link)
{
    if (link->ready)
        return NULL;
    wait_for_ends(link);
    for (int n = 0; n < 2; n++)
        if (!link->ends[n].open)
            return link->ends[n].error;
    for (int n = 0; n < 2; n++) {
        struct direction *direction = &link->directions[n];
        if (!direction_init(direction, &link->ends[n].port, &link->ends[1 - n].port, link->arena_bytes[n]) ||
            !worker_add(link->worker, direction))
            out_of_memory();
    }
    link->ready = true;
    return NULL;
}

static void free_links(struct emulator *emulator)
{
    for (size_t n = 0; n < emulator->count; n++)
        wait_for_ends(emulator->links[n]);
    for (size_t n = 0; n < 2 * emulator->count; n++) {
        struct end *end = &emulator->links[n / 2]->ends[n % 2];
        end->opening = pthread_create(&end->thread, NULL, close_end, end) == 0;
        if (!end->opening)
            close_end(end);
    }
    for (size_t n = 0; n < emulator->count; n++) {
        struct link *link = emulator->links[n];
        wait_for_ends(link);
        direction_free(&link->directions[0]);
        direction_free(&link->directions[1]);
        free(link);
    }
    free(emulator->links);
}

struct change {
    struct link *link;
    struct direction *direction;
    const struct settings *settings;
    bool done;
    char error[200];
};

static void apply_change(void *argument)
{
    struct change *change = argument;
    change->done = direction_apply(change->direction, change->settings, change->error, sizeof change->error);
    if (change->done && !worker_watch(change->link->worker, change->direction))
        out_of_memory();
}

static void set_direction(struct emulator *emulator, const struct command *command)
{
    size_t index = (size_t)command->direction;
    if (index >= 2 * emulator->count) {
        reply(emulator, "error no such direction: %zu", index);
        return;
    }
    struct change change = {.link = emulator->links[index / 2], .settings = &command->settings};
    const char *not_open = make_ready(change.link);
    if (not_open) {
        reply(emulator, "error %s", not_open);
        return;
    }
    change.direction = &change.link->directions[index % 2];
    have_run(change.link->worker, apply_change, &change);
    if (!change.done) {
        reply(emulator, "error %s", change.error);
        return;
    }
    const struct settings *now = &change.direction->settings;
    reply(emulator,
          "ok delay_ns=%lld rate_bps=%lld queue_bytes=%lld seed=%lld loss=%.17g burst_enter=%.17g burst_leave=%.17g "
          "burst_loss=%.17g burst_loss_outside=%.17g jitter_ns=%lld reorder=%lld duplicate=%.17g corrupt=%.17g",
          (long long)now->delay_ns, (long long)now->rate_bps, (long long)now->queue_bytes, (long long)now->seed,
          now->loss, now->burst_enter, now->burst_leave, now->burst_loss, now->burst_loss_outside,
          (long long)now->jitter_ns, (long long)now->reorder, now->duplicate, now->corrupt);
}

static void take_down(void *link)
{
    for (int end = 0; end < 2; end++)
        direction_set_down(&((struct link *)link)->directions[end], true);
}

static void take_up(void *link)
{
    for (int end = 0; end < 2; end++)
        direction_set_down(&((struct link *)link)->directions[end], false);
}

static void set_up(struct emulator *emulator, const struct command *command, bool up)
{
    if ((size_t)command->link >= emulator->count || !emulator->started) {
        reply(emulator, "error no such link, or not started: %lld", (long long)command->link);
        return;
    }
    struct link *link = emulator->links[command->link];
    struct port *a = &link->ends[0].port, *b = &link->ends[1].port;
    bool done = port_set_up(a, up) && port_set_up(b, up);
    int reason = errno;
    have_run(link->worker, up ? take_up : take_down, link);
    if (done)
        reply(emulator, "ok");
    else
        reply(emulator, "error interface %s or %s: %s", a->name, b->name, strerror(reason));
}

/* What a direction has counted, as of one moment. */
struct snapshot {
    const struct direction *direction;
    struct counters counters;
    struct histogram lateness;
    size_t held;
    int64_t queue_high_water_bytes;
    uint64_t stamps_refused;
    const struct worker *worker;
};

static void take_snapshot(void *argument)
{
    struct snapshot *snapshot = argument;
    const struct direction *direction = snapshot->direction;
    snapshot->counters = direction->counters;
    snapshot->lateness = direction->lateness;
    snapshot->held = direction->held.count;
    snapshot->queue_high_water_bytes = direction->line.high_water_bytes;
    snapshot->stamps_refused = snapshot->worker->clock.refused;
}

/* "bucket:count,..." of the buckets that are not empty. */
static void print_histogram(const struct histogram *histogram, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS && used < size; bucket++)
        if (histogram->counts[bucket] > 0)
            used += (size_t)snprintf(text + used, size - used, "%s%u:%llu", used ? "," : "", bucket,
                                     (unsigned long long)histogram->counts[bucket]);
}

static void report_direction(const struct emulator *emulator, size_t index)
{
    struct link *link = emulator->links[index / 2];
    struct snapshot snapshot = {.direction = &link->directions[index % 2], .worker = link->worker};
    have_run(link->worker, take_snapshot, &snapshot);
    struct end *end = &link->ends[index % 2];
    end->overflows += port_take_overflows(&end->port); /* reading it sets it to zero */
    uint64_t overflow = end->overflows + end->unseen;
    const struct counters *c = &snapshot.counters;
    char lateness[6000];
    print_histogram(&snapshot.lateness, lateness, sizeof lateness);
    reply(emulator,
          "direction frames_in=%llu bytes_in=%llu frames_out=%llu bytes_out=%llu held=%zu dropped_queue=%llu "
          "dropped_loss=%llu dropped_overflow=%llu dropped_room=%llu dropped_send=%llu dropped_down=%llu "
          "dropped_cut=%llu duplicated=%llu corrupted=%llu reordered=%llu send_retries=%llu stamps_refused=%llu "
          "queue_high_water_bytes=%lld worst_lateness_ns=%lld lateness=%s",
          (unsigned long long)(c->frames_in + overflow), (unsigned long long)c->bytes_in,
          (unsigned long long)c->frames_out, (unsigned long long)c->bytes_out, snapshot.held,
          (unsigned long long)c->dropped_queue, (unsigned long long)c->dropped_loss, (unsigned long long)overflow,
          (unsigned long long)c->dropped_room, (unsigned long long)c->dropped_send,
          (unsigned long long)c->dropped_down, (unsigned long long)c->dropped_cut, (unsigned long long)c->duplicated,
          (unsigned long long)c->corrupted, (unsigned long long)c->reordered, (unsigned long long)c->send_retries,
          (unsigned long long)snapshot.stamps_refused, (long long)snapshot.queue_high_water_bytes,
          (long long)c->worst_lateness_ns, lateness);
}

static void note_unseen(void *emulator, const char *interface, uint64_t drops)
{
    const struct emulator *all = emulator;
    for (size_t n = 0; n < 2 * all->count; n++) {
        struct end *end = &all->links[n / 2]->ends[n % 2];
        if (strcmp(end->interface, interface) == 0)
            end->unseen = drops;
    }
}

static void report_counters(struct emulator *emulator)
{
    interfaces_each_drops(note_unseen, emulator);
    for (size_t index = 0; index < 2 * emulator->count && emulator->started; index++)
        report_direction(emulator, index);
    reply(emulator, "ok");
}

static void start(struct emulator *emulator)
{
    for (size_t index = 0; index < 2 * emulator->count; index++) {
        if (emulator->links[index / 2]->directions[index % 2].settings.rate_bps == 0) {
            reply(emulator, "error direction %zu was never set", index);
            return;
        }
    }
    bool realtime = true;
    bool locked = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
    for (int n = 0; n < WORKERS && !emulator->started; n++) {
        if (!worker_start(&emulator->workers[n])) {
            fprintf(stderr, "delayline: cannot start a thread\n");
            _exit(1);
        }
        realtime &= emulator->workers[n].realtime;
    }
    emulator->started = true;
    reply(emulator, "ok realtime=%d locked=%d", realtime, locked);
}

bool emulator_init(struct emulator *emulator, int control)
{
    *emulator = (struct emulator){.control = control};
    bool done = true;
    for (int n = 0; n < WORKERS; n++)
        done &= worker_init(&emulator->workers[n]);
    return done;
}

void emulator_greet(const struct emulator *emulator)
{
    reply(emulator, "ok");
}

bool emulator_obey(struct emulator *emulator, const char *text, size_t length)
{
    struct command command;
    char error[200];
    if (!command_parse(text, length, &command, error, sizeof error)) {
        reply(emulator, "error %s", error);
        return true;
    }
    switch (command.kind) {
    case COMMAND_LINK:
        add_link(emulator, &command);
        break;
    case COMMAND_SET:
        set_direction(emulator, &command);
        break;
    case COMMAND_UP:
    case COMMAND_DOWN:
        set_up(emulator, &command, command.kind == COMMAND_UP);
        break;
    case COMMAND_START:
        start(emulator);
        break;
    case COMMAND_COUNTERS:
        report_counters(emulator);
        break;
    case COMMAND_STOP:
        return false;
    }
    return true;
}

void emulator_stop(struct emulator *emulator)
{
    for (int n = 0; n < WORKERS; n++)
        worker_stop(&emulator->workers[n]);
    bool removed = interfaces_remove();
    free_links(emulator);
    for (int n = 0; n < WORKERS; n++)
        worker_free(&emulator->workers[n]);
    reply(emulator, removed ? "ok" : "error cannot remove the interfaces");
}
