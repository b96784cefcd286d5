/* Throws random calls at the engine, and damaged datagrams at the checks, with sanitizers on: `fuzz SEED STEPS`.
 * Every sum is compared with one kept here in the plainest way. Prints what it did; exit 1 at the first wrong sum. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../../../aggregator/engines/testbed_engine.h"
#include "../../../../aggregator/wire/native/crc32.h"
#include "../../../../aggregator/wire/native/packet.h"
#include "../../../../aggregator/native/repair.h"
#include "../../../../aggregator/wire/native/tag.h"

#define BATCH 8u
#define VALUES 5u
#define STRIDE 7u

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

/* What contributor `source` sends for a key: a function of both, so that any sum can be worked out from its bitmap. */
static int32_t value_of(uint32_t source, uint32_t round, uint32_t chunk, uint32_t i) {
    return (int32_t)((source + 1) * 2654435761u ^ round * 40503u ^ chunk * 97u ^ i);
}

static struct tb_headers allocate(size_t rows) {
    return (struct tb_headers){
        calloc(rows, 4), calloc(rows, 4), calloc(rows, 4), calloc(rows, 2), calloc(rows, 4), calloc(rows, 2),
        calloc(rows, 1), calloc(rows, 1), calloc(rows, 1), calloc(rows, 1), calloc(rows, 8),
    };
}

static void release(struct tb_headers *headers) {
    free(headers->job);
    free(headers->epoch);
    free(headers->round);
    free(headers->shard);
    free(headers->chunk);
    free(headers->value_count);
    free(headers->source);
    free(headers->verdict);
    free(headers->reason);
    free(headers->contributors);
    free(headers->bitmap);
}

static bool right(const struct tb_headers *out, size_t row, const int32_t *payload) {
    for (uint32_t i = 0; i < out->value_count[row]; i++) {
        uint32_t total = 0;
        for (uint32_t source = 0; source < 64; source++)
            if (out->bitmap[row] >> source & 1) total += (uint32_t)value_of(source, out->round[row], out->chunk[row], i);
        if ((int32_t)total != payload[i]) return false;
    }
    return true;
}

static int fuzz_engine(unsigned steps) {
    struct tb_config config = {.slots = 1 + draw(40), .values_per_chunk = VALUES, .max_batch = 1 + draw(10)};
    config.index_entries = 256;
    config.slots_per_source = 1 + draw(40);
    config.hash_key = state;
    config.reordering_ns = draw(500);
    config.evict_old = (uint8_t)draw(2);
    config.drop_late = (uint8_t)draw(2);
    struct tb_engine *engine;
    if (tb_open(&config, &engine) != TB_OK) return 1;
    struct tb_headers in = allocate(BATCH), out = allocate(BATCH);
    int32_t *payloads = calloc(BATCH * STRIDE, 4), *results = calloc(BATCH * STRIDE, 4);
    int64_t now_ns = 0;
    uint64_t sums = 0;
    int wrong = 0;
    for (unsigned step = 0; step < steps && !wrong; step++) {
        now_ns += draw(60);
        struct tb_counters counters;
        uint32_t what = draw(40);
        if (what == 0) tb_drop_clique(engine, 1, 1, draw(6), &counters);
        if (what <= 2) tb_set_clique(engine, 1, 1, draw(6), 1 + draw(1000), 1 + draw(300));
        if (what == 3 && draw(20) == 0) tb_flush(engine, now_ns);
        if (what == 4 && draw(200) == 0) tb_reset(engine);
        uint32_t count = 1 + draw(BATCH);
        for (uint32_t i = 0; i < count; i++) {
            in.job[i] = 1 + (draw(50) == 0);
            in.epoch[i] = 1;
            in.round[i] = draw(6);
            in.shard[i] = (uint16_t)draw(2);
            in.chunk[i] = draw(60);
            in.source[i] = (uint8_t)(draw(30) ? draw(10) : draw(256));
            in.value_count[i] = (uint16_t)(draw(30) ? VALUES : draw(65536));
            for (uint32_t k = 0; k < VALUES; k++)
                payloads[i * STRIDE + k] = value_of(in.source[i], in.round[i], in.chunk[i], k);
        }
        if (tb_submit(engine, &in, payloads, STRIDE, count, now_ns) > count) wrong = 1;
        size_t capacity = 1 + draw(BATCH), got = tb_poll(engine, &out, results, STRIDE, capacity, now_ns);
        for (size_t i = 0; i < got; i++, sums++)
            if (!right(&out, i, results + i * STRIDE)) wrong = 1;
    }
    struct tb_stats stats;
    tb_stats(engine, &stats);
    printf("engine: %llu contributions, %llu sums checked, %s\n", (unsigned long long)stats.counters.contributions,
           (unsigned long long)sums, wrong ? "WRONG" : "right");
    tb_close(engine);
    release(&in);
    release(&out);
    free(payloads);
    free(results);
    return wrong;
}

/* Datagrams in heap memory of exactly their size, so that reading past the end is seen. */
static void fuzz_checks(unsigned steps) {
    const uint32_t shard_values[] = {100, 7};
    const struct tb_flow flows[] = {{.group = 1, .source = 2, .contributor = 3}};
    static const uint8_t key[TB_KEY_BYTES] = {1, 2, 3};
    struct tb_shape shape = {.job = 0x01010101,
                                   .values_per_chunk = 10,
                                   .shards = 2,
                                   .flow_count = 1,
                                   .shard_values = shard_values,
                                   .flows = flows};
    uint64_t verdicts[TB_REFUSALS] = {0};
    for (unsigned step = 0; step < steps; step++) {
        size_t size = draw(3) ? 64 + 4 * (draw(2) ? 10 : draw(12)) : draw(300);
        uint8_t *datagram = malloc(size ? size : 1);
        for (size_t i = 0; i < size; i++) datagram[i] = (uint8_t)draw(256);
        if (size >= 64 && draw(8)) {
            const uint8_t start[] = {0x54, 0x42, 1, 1, 0, 0, 3, 1, 1, 1, 1, 1};
            memcpy(datagram, start, sizeof start);
            memset(datagram + 20, 0, 44);
            datagram[23] = (uint8_t)((size - 64) / 4);
            datagram[27] = (uint8_t)draw(12);
            datagram[47] = 8;
            if (draw(2)) datagram[draw(64)] = (uint8_t)draw(256);
            memset(datagram + 60, 0, 4);
            uint32_t crc = tb_crc32(0, datagram, size);
            for (int i = 0; i < 4; i++) datagram[60 + i] = (uint8_t)(crc >> (24 - 8 * i));
        }
        shape.key = draw(4) ? NULL : key;
        verdicts[tb_check(&shape, datagram, size, 1, 2)]++;
        free(datagram);
    }
    printf("checks: %llu admitted of %u\n", (unsigned long long)verdicts[TB_ADMITTED], steps);
}

/* A ring of packets that are sent to a port where nobody listens, and requests for them, most of them wrong. */
static int fuzz_requests(unsigned steps) {
    enum { HOSTS = 2, HELD = 20, WAITING = 32, RING = HELD + WAITING, INDEX = 64 };
    static uint8_t rows[RING * 256];
    static uint32_t sizes[RING], shards[RING], row_of[HOSTS * INDEX];
    static int64_t sent_ns[RING], asked_ns[RING];
    static uint64_t queued[TB_REPAIR_QUEUE], counts[TB_REPAIR_COUNTS], refused[TB_REFUSALS];
    struct tb_stream streams[HOSTS];
    uint32_t first = (uint32_t)(0 - draw(200));
    for (int i = 0; i < HOSTS; i++)
        streams[i] = (struct tb_stream){.beat_ns = INT64_MAX, .address = htonl(INADDR_LOOPBACK), .next = first,
                                        .unsent = first, .trailing = first};
    struct tb_results results = {
        .rows = rows, .stride = 256, .sizes = sizes, .shards = shards, .sent_ns = sent_ns, .asked_ns = asked_ns,
        .row_of = row_of, .streams = streams, .ns_per_byte = 0.5, .ahead_ns = 100, .window_ns = 4000,
        .heartbeat_ns = 500, .ring = RING, .index = INDEX, .most_waiting = WAITING, .most_held = HELD, .stream = 7, .island_id = 3,
        .fd = socket(AF_INET, SOCK_DGRAM, 0)};
    struct tb_repairs repairs = {.queue = queued, .counts = counts, .refused = refused, .share = 0.5, .interval_ns = 30,
                                 .requests_at_once = 4, .job = 1, .shards = HOSTS};
    memset(counts, 0, sizeof counts);
    int64_t now_ns = 0;
    int wrong = results.fd < 0;
    for (unsigned step = 0; step < steps && !wrong; step++) {
        now_ns += draw(60);
        uint8_t packet[HEADER_BYTES + 40] = {0};
        uint32_t shard = draw(HOSTS);
        packet[21] = (uint8_t)shard;
        if (tb_room(&results)) tb_add_bypassed(&results, packet, HEADER_BYTES + 4 * draw(10), shard);
        const struct tb_header header = {.kind = (uint8_t)(draw(20) ? NACK : draw(256)),
                                         .source = (uint8_t)(draw(20) ? 3 : draw(256)),
                                         .contributors = 2,
                                         .job = 1 + (draw(20) == 0),
                                         .shard = (uint16_t)draw(draw(20) ? HOSTS : 65536),
                                         .number = streams[shard].next - draw(draw(10) ? 60 : 1u << 31),
                                         .stream = 7 + (draw(20) == 0),
                                         .bitmap = 1 | UINT64_C(2) << draw(63)};
        uint8_t *request = malloc(HEADER_BYTES);
        put_header(request, &header);
        if (draw(20) == 0) request[draw(HEADER_BYTES)] = (uint8_t)draw(256);
        if (draw(20)) put32(request + CHECKSUM_AT, tb_datagram_crc32(request, HEADER_BYTES));
        if (tb_request(&repairs, &results, request, HEADER_BYTES, htonl(INADDR_LOOPBACK), now_ns) < 0) wrong = 1;
        free(request);
        if (tb_send_repairs(&repairs, &results, now_ns) || tb_send_due(&results, now_ns)) wrong = 1;
        if (results.held > HELD || results.waiting > WAITING || tb_next_repair_ns(&repairs, &results) < 0) wrong = 1;
        for (uint32_t i = 0; i < HOSTS; i++)
            if (streams[i].next - streams[i].trailing > HELD + WAITING) wrong = 1;
    }
    printf("requests: %llu taken, %llu repairs, %llu gone, %s\n", (unsigned long long)counts[TB_NACKS],
           (unsigned long long)counts[TB_REPAIRS], (unsigned long long)counts[TB_GONE], wrong ? "WRONG" : "right");
    close(results.fd);
    return wrong;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = strtoull(argv[1], NULL, 10);
    unsigned steps = (unsigned)strtoul(argv[2], NULL, 10);
    fuzz_checks(steps);
    if (fuzz_requests(steps)) return 1;
    for (int i = 0; i < 4; i++)
        if (fuzz_engine(steps)) return 1;
    return 0;
}
