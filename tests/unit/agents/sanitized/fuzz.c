/* Throws packets at a host's receiver, good ones, odd ones and damaged ones, with sanitizers on: `fuzz SEED STEPS`. What
 * is kept here in the plainest way must agree: sums, bitmaps, whose turn it is. Memory is exactly as large as it must be,
 * so that reading or writing past its end is seen. Prints what it did; exit 1 at the first disagreement. */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../../../agents/native/receive.h"
#include "../../../../aggregator/wire/native/crc32.h"
#include "../../../../aggregator/wire/native/tag.h"

#define PER_CHUNK 6u
#define CHUNKS 9u
#define VALUES (PER_CHUNK * CHUNKS - 2)
#define EXPECTED UINT64_C(0x800000000000000E)
#define CONTRIBUTORS 4u
#define EDGE 1u
#define PEER 2u
#define PEER_ISLAND 3u
#define JOB 5u
#define ROUND 9u

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

/* What contributor `source` sends in place i of a chunk; the sum of all for a bitmap. */
static int32_t sum_of(uint64_t bitmap, uint32_t chunk, uint32_t i) {
    uint32_t total = 0;
    for (uint32_t source = 0; source < 64; source++)
        if (bitmap >> source & 1) total += (source + 1) * 2654435761u ^ chunk * 97u ^ i;
    return (int32_t)total;
}

static uint32_t values_in(uint32_t chunk) {
    if (chunk >= CHUNKS) return draw(PER_CHUNK + 2);
    return chunk == CHUNKS - 1 ? PER_CHUNK - 2 : PER_CHUNK;
}

/* A packet, mostly what a host gets; the caller frees it. `next` is where the stream stands. */
static uint8_t *make_packet(uint32_t next, const uint8_t *key, size_t *size) {
    uint64_t pick = draw(3) ? EXPECTED : EXPECTED & ((uint64_t)draw(1u << 31) << 33 | draw(16));
    uint32_t chunk = draw(30) ? draw(CHUNKS) : draw(1u << 31) * 2 + draw(2);
    struct tb_header header = {.kind = RESULT, .reason = (uint8_t)(draw(4) ? 1 : draw(5)), .flags = (uint8_t)(draw(8) ? 0 : draw(5)),
                               .source = 0, .contributors = (uint8_t)__builtin_popcountll(pick), .shard = 2,
                               .value_count = (uint16_t)values_in(chunk), .job = JOB + (draw(60) == 0), .epoch = 1 + (draw(60) == 0),
                               .round = ROUND + (draw(60) == 0) - (draw(60) == 0), .chunk = chunk,
                               .number = draw(6) ? next : next + draw(9) - 4, .stream = draw(40) ? 7 : draw(3), .bitmap = pick};
    if (draw(5) == 0) {
        header.kind = (uint8_t)(draw(3) ? CONTRIBUTION : draw(9));
        header.source = (uint8_t)(draw(4) ? 1 + draw(3) : draw(256));
        header.bitmap = header.source < 64 ? UINT64_C(1) << header.source : 2;
        header.contributors = 1;
        header.flags = (uint8_t)(1 + draw(3));
    }
    if (header.kind == HEARTBEAT || header.kind == GONE) header.value_count = (uint16_t)(draw(2) * draw(4));
    *size = HEADER_BYTES + VALUE_BYTES * header.value_count;
    uint8_t *packet = malloc(*size);
    put_header(packet, &header);
    put32(packet + TRAILING_EDGE_AT, header.number - draw(6) - 1);
    for (uint32_t i = 0; i < header.value_count; i++) {
        int32_t value = sum_of(header.bitmap, header.chunk, i);
        memcpy(packet + HEADER_BYTES + 4 * i, &value, sizeof value);
    }
    if (key) put64(packet + TB_TAG_AT, tb_tag(key, packet, *size));
    put32(packet + CHECKSUM_AT, tb_datagram_crc32(packet, *size));
    if (draw(40) == 0) packet[draw((uint32_t)*size)] ^= (uint8_t)(1 + draw(255));
    return packet;
}

static bool right(const struct tb_host *host) {
    uint32_t missing = 0;
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        if (host->have[chunk] != host->bitmaps[chunk] || host->have[chunk] & ~EXPECTED) return false;
        missing += host->have[chunk] != EXPECTED;
        for (uint32_t i = 0; i < values_in(chunk); i++)
            if (host->summed[chunk * PER_CHUNK + i] != sum_of(host->have[chunk], chunk, i)) return false;
    }
    return missing == host->missing && host->merges <= CHUNKS * CONTRIBUTORS;
}

static struct tb_host make_host(const uint8_t *key, const struct tb_peer *peer, uint64_t stride) {
    return (struct tb_host){.key = key, .peers = peer, .peer_count = 1, .edge_address = EDGE,
                            .rows = malloc(TB_HOST_BATCH * stride), .stride = stride,
                            .counts = calloc(TB_HOST_COUNTS, sizeof(uint64_t)), .told = malloc(TB_HOST_BATCH * HEADER_BYTES),
                            .told_why = malloc(TB_HOST_BATCH), .summed = malloc(VALUES * sizeof(int32_t)),
                            .bitmaps = malloc(CHUNKS * sizeof(uint64_t)), .have = malloc(CHUNKS * sizeof(uint64_t)),
                            .waits_ns = malloc(CHUNKS * CONTRIBUTORS * sizeof(int64_t)), .expected = EXPECTED, .job = JOB,
                            .shard = 2, .values = VALUES, .values_per_chunk = PER_CHUNK, .epoch = 1, .round = ROUND, .fd = -1};
}

static void begin_round(struct tb_host *host) {
    memset(host->summed, 0, VALUES * sizeof(int32_t));
    memset(host->bitmaps, 0, CHUNKS * sizeof(uint64_t));
    memset(host->have, 0, CHUNKS * sizeof(uint64_t));
    host->missing = CHUNKS;
    host->merges = 0;
}

static void release(struct tb_host *host) {
    free(host->rows);
    free(host->counts);
    free(host->told);
    free(host->told_why);
    free(host->summed);
    free(host->bitmaps);
    free(host->have);
    free(host->waits_ns);
}

/* Between two rounds there is no memory of a round to be touched. */
static void pause_or_go_on(struct tb_host *host, int32_t *summed, uint64_t *bitmaps) {
    bool pause = draw(30) == 0;
    host->summed = pause ? NULL : summed;
    host->bitmaps = pause ? NULL : bitmaps;
}

static bool fuzz_packets(unsigned steps) {
    static const uint8_t key[TB_KEY_BYTES] = {1, 2, 3};
    const struct tb_peer peer = {.address = PEER, .island = PEER_ISLAND};
    struct tb_host host = make_host(NULL, &peer, 128);
    int32_t *summed = host.summed;
    uint64_t *bitmaps = host.bitmaps, turns = 0, told = 0, counted = 0;
    uint32_t next = (uint32_t)(0 - draw(2000));
    bool wrong = false;
    begin_round(&host);
    for (unsigned step = 0; step < steps && !wrong;) {
        if (draw(6) == 0) begin_round(&host);
        if (draw(6) == 0) host.key = host.key ? NULL : key;
        pause_or_go_on(&host, summed, bitmaps);
        host.stream = 7;
        host.next = next;
        host.turns = 0;
        host.tell = draw(3);
        tb_host_begin_batch(&host);
        uint32_t batch = 1 + draw(TB_HOST_BATCH);
        for (uint32_t i = 0; i < batch; i++, step++) {
            size_t size;
            uint8_t *packet = make_packet(host.next, host.key, &size);
            if (draw(60) == 0) packet = realloc(packet, size -= 1 + draw((uint32_t)size - 1));
            tb_host_take(&host, packet, size, draw(20) ? EDGE : draw(4), (int64_t)step);
            free(packet);
        }
        host.summed = summed;
        host.bitmaps = bitmaps;
        wrong = !right(&host) || host.next != next + host.turns || host.told_count > batch;
        next = host.next + draw(2) * draw(5);
        turns += host.turns;
        told += host.told_count;
    }
    for (int i = 0; i < TB_HOST_COUNTS; i++) counted += host.counts[i] > 0;
    printf("packets: %llu in turn, %llu told, %llu kinds counted, %s\n", (unsigned long long)turns, (unsigned long long)told,
           (unsigned long long)counted, wrong ? "WRONG" : "right");
    release(&host);
    return !wrong;
}

/* The same through a real socket, where some are longer than any row. */
static bool fuzz_socket(unsigned steps) {
    const struct tb_peer peer = {.address = PEER, .island = PEER_ISLAND};
    struct tb_host host = make_host(NULL, &peer, 128);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int on = 1, sender = socket(AF_INET, SOCK_DGRAM, 0);
    host.fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    host.edge_address = address.sin_addr.s_addr;
    bool wrong = setsockopt(host.fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) ||
                 bind(host.fd, (struct sockaddr *)&address, sizeof address) ||
                 getsockname(host.fd, (struct sockaddr *)&address, &length);
    uint64_t taken = 0, counted = 0;
    begin_round(&host);
    for (unsigned step = 0; step < steps && !wrong; step++) {
        if (draw(20) == 0) begin_round(&host);
        for (uint32_t i = draw(TB_HOST_BATCH); i > 0; i--, taken++) {
            size_t size;
            uint8_t *packet = make_packet(host.next, NULL, &size);
            if (draw(20) == 0) packet = realloc(packet, size = 2000 + draw(2000));
            wrong |= sendto(sender, packet, size, 0, (struct sockaddr *)&address, sizeof address) != (ssize_t)size;
            free(packet);
        }
        while (recv(host.fd, &on, 1, MSG_PEEK) >= 0 && !wrong) {
            wrong = tb_host_wait(&host, -1, 0) != 0 || !right(&host);
            for (uint32_t i = 0; i < host.merges; i++) wrong |= host.waits_ns[i] < 0;
        }
    }
    for (int i = 0; i < TB_HOST_COUNTS; i++) counted += host.counts[i] > 0;
    printf("socket: %llu taken, %llu kinds counted, %s\n", (unsigned long long)taken, (unsigned long long)counted,
           wrong ? "WRONG" : "right");
    close(host.fd);
    close(sender);
    release(&host);
    return !wrong;
}

/* Arrivals by the kernel's stamps; a stamp that a step of the wall clock has made impossible is not believed. */
static bool check_stamps(void) {
    static const int64_t day = INT64_C(86400000000000), millisecond = 1000000;
    const struct tb_stamps stamps = {.now_ns = 50 * day + 700 * millisecond, .offset_ns = 20000 * day + 5, .empty_ns = 50 * day};
    const struct {
        int64_t arrival_ns, wanted_ns;
    } cases[] = {{50 * day + 1, 50 * day + 1},
                 {stamps.now_ns, stamps.now_ns},
                 {50 * day - 15 * millisecond, 50 * day - 15 * millisecond}, /* had to wait for the softirq */
                 {50 * day - 25 * millisecond, stamps.now_ns},
                 {stamps.now_ns + 1, stamps.now_ns},
                 {51 * day, stamps.now_ns},
                 {49 * day, stamps.now_ns}};
    bool wrong = false;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct timespec))] = {0};
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        int64_t wall_ns = cases[i].arrival_ns + stamps.offset_ns;
        struct timespec stamp = {.tv_sec = wall_ns / 1000000000, .tv_nsec = wall_ns % 1000000000};
        part->cmsg_len = CMSG_LEN(sizeof stamp);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_TIMESTAMPNS;
        memcpy(CMSG_DATA(part), &stamp, sizeof stamp);
        wrong |= tb_arrival_ns(&stamps, &message) != cases[i].wanted_ns;
    }
    struct msghdr nothing = {0};
    wrong |= tb_arrival_ns(&stamps, &nothing) != stamps.now_ns;
    printf("stamps: %s\n", wrong ? "WRONG" : "right");
    return !wrong;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = strtoull(argv[1], NULL, 10);
    unsigned steps = (unsigned)strtoul(argv[2], NULL, 10);
    return check_stamps() && fuzz_packets(steps) && fuzz_socket(steps / 100) ? 0 : 1;
}
