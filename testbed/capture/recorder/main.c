/* recorder: appends the frames of many interfaces to pcapng files, until told to stop.
 *
 * Usage: recorder CONTROL-FD SNAP-BYTES BLOCK-BYTES BLOCKS FILE-FD:INTERFACE-NUMBER:SOCKET-FD:INTERFACE …
 *
 * Each last argument is an unbound packet socket in the interface's network namespace, and the open file and the number
 * in it that its frames get. CONTROL-FD is a Unix SEQPACKET socket: the program says "ready" or "error …" on it; at the
 * message "stop" it takes in what has arrived until then, and answers with a line for each interface, in their order:
 * "arrived=N dropped=N unwritten=N". It ends then, or when the socket closes. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "output.h"
#include "ring.h"

#define SWEEP_MS 10
#define FLUSH_SWEEPS 50
#define DRAIN_SWEEPS (20 * RING_BLOCK_MS / SWEEP_MS)
#define ERROR_BYTES 200

struct source {
    struct ring ring;
    struct output *output;
    const char *interface;
    int fd;
    uint32_t number;
    const struct ring_shape *shape;
    pthread_t thread;
    bool open;
    char error[ERROR_BYTES];
};

struct recorder {
    int control;
    struct source *sources;
    size_t source_count;
    struct output *outputs;
    size_t output_count;
};

static void say(const struct recorder *recorder, const char *text)
{
    while (send(recorder->control, text, strlen(text), MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

static struct output *output_of(struct recorder *recorder, int fd)
{
    for (size_t i = 0; i < recorder->output_count; i++)
        if (recorder->outputs[i].fd == fd)
            return &recorder->outputs[i];
    struct output *output = &recorder->outputs[recorder->output_count];
    if (!output_open(output, fd))
        return NULL;
    recorder->output_count++;
    return output;
}

static bool parse_source(struct recorder *recorder, struct source *source, const char *text)
{
    int file, name_at = 0;
    if (sscanf(text, "%d:%u:%d:%n", &file, &source->number, &source->fd, &name_at) != 3 || name_at == 0)
        return false;
    source->interface = text + name_at;
    source->output = output_of(recorder, file);
    return source->output != NULL;
}

static void *open_source(void *argument)
{
    struct source *source = argument;
    source->open = ring_open(&source->ring, source->fd, source->interface, source->shape, source->error,
                             sizeof source->error);
    return NULL;
}

/* Making a ring waits for every processor to pass by (RCU), 10 to 20 ms: they are made side by side. */
static bool open_sources(struct recorder *recorder)
{
    size_t started = 0;
    while (started < recorder->source_count &&
           pthread_create(&recorder->sources[started].thread, NULL, open_source, &recorder->sources[started]) == 0)
        started++;
    const char *error = started < recorder->source_count ? "cannot make a thread" : NULL;
    for (size_t i = 0; i < started; i++) {
        struct source *source = &recorder->sources[i];
        pthread_join(source->thread, NULL);
        if (!source->open)
            error = source->error;
    }
    char message[ERROR_BYTES + 8];
    snprintf(message, sizeof message, error ? "error %s" : "ready", error);
    say(recorder, message);
    return !error;
}

static void take_in(struct source *source)
{
    struct tpacket_hdr_v1 *block;
    while ((block = ring_block(&source->ring)) != NULL) {
        const struct tpacket3_hdr *frame = ring_first(block);
        for (uint32_t i = 0; i < block->num_pkts; i++, frame = ring_after(frame))
            output_frame(source->output, source->number, frame);
        ring_release(&source->ring, block);
    }
}

static void sweep(struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->source_count; i++)
        take_in(&recorder->sources[i]);
}

static void flush(struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->output_count; i++)
        output_flush(&recorder->outputs[i]);
}

/* Whether the parent has asked for the end, or is gone. */
static bool stopped(const struct recorder *recorder)
{
    struct pollfd control = {.fd = recorder->control, .events = POLLIN};
    return poll(&control, 1, SWEEP_MS) > 0;
}

/* The kernel hands a block over when it is full or old enough: wait until all that arrived before now has come. */
static void drain(struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->source_count; i++)
        ring_count(&recorder->sources[i].ring);
    const struct timespec pause = {.tv_nsec = SWEEP_MS * 1000000L};
    for (int left = DRAIN_SWEEPS; left > 0; left--) {
        sweep(recorder);
        bool all = true;
        for (size_t i = 0; i < recorder->source_count && all; i++) {
            const struct ring *ring = &recorder->sources[i].ring;
            all = ring->taken + ring->dropped >= ring->arrived;
        }
        if (all)
            break;
        nanosleep(&pause, NULL);
    }
    flush(recorder);
}

/* Per interface; what was not written is counted for the whole file that the interface's frames go to. */
static void report(const struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->source_count; i++) {
        const struct ring *ring = &recorder->sources[i].ring;
        uint64_t known = ring->taken + ring->dropped; /* some may have come since the counts were read */
        uint64_t missing = ring->arrived > known ? ring->arrived - known : 0;
        char line[ERROR_BYTES];
        snprintf(line, sizeof line, "arrived=%llu dropped=%llu unwritten=%llu", (unsigned long long)(known + missing),
                 (unsigned long long)(ring->dropped + missing),
                 (unsigned long long)recorder->sources[i].output->unwritten);
        say(recorder, line);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: recorder CONTROL-FD SNAP-BYTES BLOCK-BYTES BLOCKS FILE-FD:NUMBER:SOCKET-FD:INTERFACE … "
                        "(testbed starts it)\n");
        return 2;
    }
    size_t count = (size_t)argc - 5;
    const struct ring_shape shape = {.snap_bytes = (uint32_t)atoi(argv[2]),
                                     .block_bytes = (uint32_t)atoi(argv[3]),
                                     .blocks = (uint32_t)atoi(argv[4])};
    struct recorder recorder = {.control = atoi(argv[1]),
                                .sources = calloc(count, sizeof *recorder.sources),
                                .source_count = count,
                                .outputs = calloc(count, sizeof *recorder.outputs)};
    if (!recorder.sources || !recorder.outputs)
        return 1;
    for (size_t i = 0; i < count; i++) {
        recorder.sources[i].shape = &shape;
        if (!parse_source(&recorder, &recorder.sources[i], argv[i + 5])) {
            say(&recorder, "error bad arguments, or no memory");
            return 2;
        }
    }
    if (!open_sources(&recorder))
        return 1;
    for (unsigned sweeps = 1; !stopped(&recorder); sweeps++) {
        sweep(&recorder);
        if (sweeps % FLUSH_SWEEPS == 0)
            flush(&recorder);
    }
    drain(&recorder);
    report(&recorder);
    return 0;
}
