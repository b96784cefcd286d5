/* Speed of the native engine and of the edge's way in, measured from C as the edge's loop calls them; bench_engine.py
 * builds and runs it: `engine_speed ENGINE.so RECEIVE.so VALUES`. One line per figure: a name and nanoseconds per
 * contribution, best of several turns. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../aggregator/wire/native/crc32.h"
#include "../../aggregator/native/receive.h"

#define SOURCES 8u
#define CHUNKS 1024u
#define BATCH TB_RECEIVE_BATCH /* the engine's largest; also how many packets wait at a socket */
#define ORDER (SOURCES * CHUNKS)
#define JOB 5u
#define TURNS 9
#define BUFFER_BYTES (16 << 20)
#define ALIGNMENT 64u
#define FEW_OPEN 32u  /* sums that are open at a time: they stay in the cache, */
#define MANY_OPEN 512u /* and they do not */

static int (*engine_open)(const struct tb_config *, struct tb_engine **);
static int (*set_clique)(struct tb_engine *, uint32_t, uint32_t, uint32_t, uint64_t, int64_t);
static int (*drop_clique)(struct tb_engine *, uint32_t, uint32_t, uint32_t, struct tb_counters *);
static size_t (*submit)(struct tb_engine *, const struct tb_headers *, const int32_t *, size_t, size_t, int64_t);
static size_t (*poll_results)(struct tb_engine *, const struct tb_headers *, int32_t *, size_t, size_t, int64_t);
static __typeof__(&tb_receive) receive_batch;
static __typeof__(&tb_check) check;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *named(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name);
    return found;
}

static void *rows_of(size_t bytes) {
    void *rows = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!rows) fail("memory");
    memset(rows, 1, bytes);
    return rows;
}

static struct tb_headers headers_of(size_t rows) {
    return (struct tb_headers){
        calloc(rows, 4), calloc(rows, 4), calloc(rows, 4), calloc(rows, 2), calloc(rows, 4), calloc(rows, 2),
        calloc(rows, 1), calloc(rows, 1), calloc(rows, 1), calloc(rows, 1), calloc(rows, 8),
    };
}

static uint32_t window = FEW_OPEN;

/* Contribution i of a round: windows of chunks, in each window one source after the other. */
static uint32_t source_of(uint32_t i) { return i / window % SOURCES; }
static uint32_t chunk_of(uint32_t i) { return i / (window * SOURCES) * window + i % window; }

static struct tb_engine *open_engine(uint32_t values) {
    struct tb_engine *engine;
    struct tb_config config = {
        .slots = 1024, .index_entries = 8192, .values_per_chunk = values, .max_batch = BATCH, .reordering_ns = 1,
        .slots_per_source = TB_NO_CAP};
    if (engine_open(&config, &engine) != TB_OK) fail("engine");
    return engine;
}

static void finish(struct tb_engine *engine, uint32_t round, uint64_t results) {
    struct tb_counters counters;
    if (drop_clique(engine, JOB, 0, round, &counters) != TB_OK || counters.complete != CHUNKS || results != CHUNKS) {
        fprintf(stderr, "%llu results of %u\n", (unsigned long long)results, CHUNKS);
        exit(1);
    }
}

static double copying(uint32_t values) {
    size_t bytes = 4u * values;
    char *from = rows_of(BATCH * bytes), *to = rows_of(BATCH * bytes);
    double best = 1e18;
    for (int turn = 0; turn < TURNS; turn++) {
        double start = now_ns();
        for (uint32_t i = 0; i < ORDER; i++) {
            memcpy(to + i % BATCH * bytes, from + i % BATCH * bytes, bytes);
            __asm__ volatile("" ::: "memory");
        }
        double used = (now_ns() - start) / ORDER;
        if (used < best) best = used;
    }
    free(from);
    free(to);
    return best;
}

static double engine_alone(uint32_t values, uint32_t batch) {
    struct tb_engine *engine = open_engine(values);
    struct tb_headers in = headers_of(BATCH), out = headers_of(BATCH);
    int32_t *payloads = rows_of((size_t)BATCH * 4 * values), *results = rows_of((size_t)BATCH * 4 * values);
    double best = 1e18;
    for (uint32_t round = 0; round < TURNS; round++) {
        set_clique(engine, JOB, 0, round, (1u << SOURCES) - 1, INT64_C(1000000000000));
        uint64_t done = 0;
        double start = now_ns();
        for (uint32_t first = 0; first < ORDER; first += batch) {
            uint32_t count = ORDER - first < batch ? ORDER - first : batch;
            for (uint32_t i = 0; i < count; i++) {
                in.job[i] = JOB;
                in.round[i] = round;
                in.chunk[i] = chunk_of(first + i);
                in.source[i] = (uint8_t)source_of(first + i);
                in.value_count[i] = (uint16_t)values;
            }
            /* Batches of any size go through all payload rows, as packets go through a receiver's. */
            uint32_t row = first % BATCH + count > BATCH ? 0 : first % BATCH;
            if (submit(engine, &in, payloads + (size_t)row * values, values, count, round) != count) fail("submit");
            done += poll_results(engine, &out, results, values, BATCH, round);
        }
        double used = (now_ns() - start) / ORDER;
        if (used < best) best = used;
        finish(engine, round, done);
    }
    return best;
}

struct line {
    int senders[SOURCES], receiver;
    uint8_t *packets; /* BATCH rows */
    size_t size;
};

static int open_socket(const char *address, uint16_t port) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = BUFFER_BYTES;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &at.sin_addr);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size)) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(fd, (struct sockaddr *)&at, sizeof at)) fail("bind");
    return fd;
}

static struct line open_line(uint16_t port, uint32_t values, bool with_info) {
    struct line line = {.size = 64 + 4u * values, .receiver = open_socket("127.0.0.1", port)};
    int on = 1, off = 1;
    if (with_info) setsockopt(line.receiver, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    for (uint32_t i = 0; i < SOURCES; i++) {
        char address[16];
        snprintf(address, sizeof address, "127.0.0.%u", 2 + i);
        line.senders[i] = open_socket(address, 0);
        setsockopt(line.senders[i], SOL_SOCKET, SO_NO_CHECK, &off, sizeof off);
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (connect(line.senders[i], (struct sockaddr *)&to, sizeof to)) fail("connect");
    }
    line.packets = rows_of(BATCH * line.size);
    return line;
}

/* Packets `first` and following of the round wait at the socket. */
static void fill(const struct line *line, uint32_t round, uint32_t first, uint32_t count, uint32_t values) {
    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *packet = line->packets + i * line->size;
        uint32_t source = source_of(first + i);
        memset(packet, 0, 64);
        put32(packet, 0x54420101);
        packet[6] = (uint8_t)source;
        packet[7] = 1;
        put32(packet + 8, JOB);
        put32(packet + 16, round);
        put32(packet + 20, values);
        put32(packet + 24, chunk_of(first + i));
        put32(packet + 44, 1u << source);
        put32(packet + 60, tb_crc32(0, packet, line->size));
        vectors[i] = (struct iovec){packet, line->size};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i;
        while (end < count && source_of(first + end) == source_of(first + i)) end++;
        while (i < end) {
            int sent = sendmmsg(line->senders[source_of(first + i)], messages + i, end - i, 0);
            if (sent < 0) fail("sendmmsg");
            i += (uint32_t)sent;
        }
    }
}

struct parts {
    double bare, received, added;
};

/* The bare loop: one call of the kernel, for as many packets as the edge takes with one. */
static uint32_t read_only(int fd, uint8_t *rows, size_t stride) {
    struct mmsghdr messages[TB_RECEIVE_BATCH];
    struct iovec vectors[TB_RECEIVE_BATCH];
    uint32_t batch = tb_receive_batch(stride);
    for (uint32_t i = 0; i < batch; i++) {
        vectors[i] = (struct iovec){rows + i * stride, stride};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int got = recvmmsg(fd, messages, batch, MSG_DONTWAIT, NULL);
    if (got <= 0) fail("bare loop");
    return (uint32_t)got;
}

/* Nanoseconds per contribution of reading alone, and of receiving, checking, adding and polling, by turns. */
static struct parts on_a_socket(uint32_t values, uint16_t port) {
    struct line bare = open_line(port, values, false), whole = open_line((uint16_t)(port + 1), values, true);
    size_t stride = (64 + 4u * values + ALIGNMENT) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    uint8_t *bare_rows = rows_of(BATCH * stride), *rows = rows_of(BATCH * stride);
    int32_t *results = rows_of((size_t)BATCH * stride);
    struct tb_headers in = headers_of(BATCH), out = headers_of(BATCH);
    struct tb_flow flows[SOURCES] = {0};
    for (uint32_t i = 0; i < SOURCES; i++) {
        flows[i].group = htonl(INADDR_LOOPBACK);
        flows[i].source = htonl(0x7F000002u + i);
        flows[i].contributor = (uint8_t)i;
    }
    uint32_t shard_values = CHUNKS * values, sizes[BATCH], probe_count, taken;
    struct tb_shape shape = {.job = JOB, .values_per_chunk = values, .shards = 1, .flow_count = SOURCES,
                             .shard_values = &shard_values, .flows = flows};
    struct tb_probe probes[BATCH];
    uint64_t refused[TB_REFUSALS] = {0};
    struct tb_engine *engine = open_engine(values);
    struct parts best = {1e18, 1e18, 1e18};
    for (uint32_t round = 0; round < TURNS; round++) {
        struct parts used = {0};
        uint64_t done = 0;
        set_clique(engine, JOB, 0, round, (1u << SOURCES) - 1, INT64_C(1000000000000));
        for (uint32_t first = 0; first < ORDER; first += BATCH) {
            fill(&bare, round, first, BATCH, values);
            double start = now_ns();
            for (uint32_t left = BATCH; left;) left -= read_only(bare.receiver, bare_rows, stride);
            used.bare += now_ns() - start;
            fill(&whole, round, first, BATCH, values);
            start = now_ns();
            for (uint32_t left = BATCH; left;) {
                int count = receive_batch(whole.receiver, &shape, rows, stride, &in, sizes, probes, &probe_count, refused, &taken);
                if (count <= 0 || (uint32_t)count != taken) fail("receive");
                left -= (uint32_t)count;
                double received = now_ns();
                used.received += received - start;
                const int32_t *payloads = (const int32_t *)(const void *)(rows + 64);
                if (submit(engine, &in, payloads, stride / 4, (size_t)count, round) != (size_t)count) fail("submit");
                done += poll_results(engine, &out, results, stride / 4, BATCH, round);
                start = now_ns();
                used.added += start - received;
            }
        }
        finish(engine, round, done);
        if (used.bare < best.bare * ORDER) best.bare = used.bare / ORDER;
        if (used.received + used.added < (best.received + best.added) * ORDER) {
            best.received = used.received / ORDER;
            best.added = used.added / ORDER;
        }
    }
    return best;
}

static double checking(uint32_t values) {
    size_t size = 64 + 4u * values;
    uint8_t *packets = rows_of(BATCH * size);
    uint32_t sum = 0;
    double best = 1e18;
    for (int turn = 0; turn < TURNS; turn++) {
        double start = now_ns();
        for (uint32_t i = 0; i < ORDER; i++) {
            packets[i % BATCH * size] = 0x54;
            packets[i % BATCH * size + 1] = 0x42;
            put32(packets + i % BATCH * size + 20, values);
            sum += (uint32_t)check(&(struct tb_shape){0}, packets + i % BATCH * size, size, 0, 0);
        }
        double used = (now_ns() - start) / ORDER;
        if (used < best) best = used;
    }
    if (sum != TB_BAD_CHECKSUM * ORDER * TURNS) fail("checks");
    return best;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    void *engine = dlopen(argv[1], RTLD_NOW), *receive = dlopen(argv[2], RTLD_NOW);
    if (!engine || !receive) fail(dlerror());
    engine_open = named(engine, "tb_open");
    set_clique = named(engine, "tb_set_clique");
    drop_clique = named(engine, "tb_drop_clique");
    submit = named(engine, "tb_submit");
    poll_results = named(engine, "tb_poll");
    receive_batch = named(receive, "tb_receive");
    check = named(receive, "tb_check");
    uint32_t values = (uint32_t)atoi(argv[3]);
    printf("copy %.1f\n", copying(values));
    printf("check %.1f\n", checking(values));
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t batch = (const uint32_t[]){1, 7, BATCH}[i];
        printf("engine-%u %.1f\n", batch, engine_alone(values, batch));
    }
    struct parts few = on_a_socket(values, 47100);
    printf("bare %.1f\nreceive %.1f\nadd %.1f\n", few.bare, few.received, few.added);
    window = MANY_OPEN;
    struct parts many = on_a_socket(values, 47102);
    printf("bare-open %.1f\nreceive-open %.1f\nadd-open %.1f\n", many.bare, many.received, many.added);
    return 0;
}
