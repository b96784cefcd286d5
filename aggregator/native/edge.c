#include "edge.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "crc32.h"
#include "tag.h"

#define HEADER_BYTES 64u
#define CHECKSUM_AT 60u
#define FRAME_OVERHEAD_BYTES 42u
#define RESULT_PORT 47001
#define FLAG_BYPASSED 1u
#define RESULT_KIND 2u
#define SECOND_NS INT64_C(1000000000)
#define RETRY_NS INT64_C(1000000)

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value);
}

static void seal(const uint8_t *key, uint8_t *datagram, size_t size) {
    if (key) {
        uint64_t tag = tb_tag(key, datagram, size);
        put32(datagram + TB_TAG_AT, (uint32_t)(tag >> 32));
        put32(datagram + TB_TAG_AT + 4, (uint32_t)tag);
    }
    put32(datagram + CHECKSUM_AT, tb_datagram_crc32(datagram, size));
}

/* --- the ring --- */

static uint32_t room(const struct tb_results *results) { return results->ring - results->waiting; }

static uint32_t free_row(const struct tb_results *results) { return (results->head + results->waiting) % results->ring; }

static uint8_t *row_at(const struct tb_results *results, uint32_t row) { return results->rows + row * results->stride; }

static void queue(struct tb_results *results, uint32_t row, size_t size, uint32_t shard) {
    results->sizes[row] = (uint32_t)size;
    results->shards[row] = shard;
    results->waiting++;
}

static void add_bypassed(struct tb_results *results, const uint8_t *datagram, size_t size, uint32_t shard) {
    uint32_t row = free_row(results);
    uint8_t *copy = row_at(results, row);
    memcpy(copy, datagram, size);
    copy[4] |= FLAG_BYPASSED;
    seal(results->key, copy, size);
    queue(results, row, size, shard);
}

/* The header goes in front of a sum that is in its row already. */
static void add_result(struct tb_results *results, const struct tb_headers *headers, size_t i) {
    uint32_t row = free_row(results), shard = headers->shard[i], number = results->numbers[shard]++;
    uint8_t *at = row_at(results, row);
    size_t size = HEADER_BYTES + 4u * headers->value_count[i];
    memset(at, 0, HEADER_BYTES);
    put16(at, 0x5442);
    at[2] = 1;
    at[3] = RESULT_KIND;
    at[5] = headers->reason[i];
    at[6] = (uint8_t)results->island_id;
    at[7] = headers->contributors[i];
    put32(at + 8, headers->job[i]);
    put32(at + 12, headers->epoch[i]);
    put32(at + 16, headers->round[i]);
    put16(at + 20, shard);
    put16(at + 22, headers->value_count[i]);
    put32(at + 24, headers->chunk[i]);
    put32(at + 28, number);
    put32(at + 32, number);
    at[36] = (uint8_t)results->number_format;
    put32(at + 40, (uint32_t)(headers->bitmap[i] >> 32));
    put32(at + 44, (uint32_t)headers->bitmap[i]);
    seal(results->key, at, size);
    queue(results, row, size, shard);
}

static double next_send_ns(const struct tb_results *results) {
    double paced = results->line_free_ns - results->ahead_ns, retry = (double)results->retry_ns;
    return paced > retry ? paced : retry;
}

static double line_after(const struct tb_results *results, double free_ns, uint32_t row, int64_t now_ns) {
    double start = free_ns > (double)now_ns ? free_ns : (double)now_ns;
    return start + (results->sizes[row] + FRAME_OVERHEAD_BYTES) * results->ns_per_byte;
}

/* Send what may go now. Returns 0, or minus an errno. */
static int send_due(struct tb_results *results, int64_t now_ns) {
    while (results->waiting && next_send_ns(results) <= (double)now_ns) {
        struct mmsghdr messages[TB_RECEIVE_BATCH];
        struct iovec vectors[TB_RECEIVE_BATCH];
        struct sockaddr_in hosts[TB_RECEIVE_BATCH];
        double free_ns = results->line_free_ns;
        uint32_t count = 0;
        while (count < TB_RECEIVE_BATCH && count < results->waiting && free_ns - results->ahead_ns <= (double)now_ns) {
            uint32_t row = (results->head + count) % results->ring;
            hosts[count] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(RESULT_PORT)};
            hosts[count].sin_addr.s_addr = results->addresses[results->shards[row]];
            vectors[count] = (struct iovec){.iov_base = row_at(results, row), .iov_len = results->sizes[row]};
            messages[count].msg_hdr = (struct msghdr){.msg_name = &hosts[count],
                                                      .msg_namelen = sizeof hosts[count],
                                                      .msg_iov = &vectors[count],
                                                      .msg_iovlen = 1};
            free_ns = line_after(results, free_ns, row, now_ns);
            count++;
        }
        int sent = sendmmsg(results->fd, messages, count, MSG_DONTWAIT);
        if (sent < 0) {
            if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) return -errno;
            results->retry_ns = now_ns + RETRY_NS;
            return 0;
        }
        for (int i = 0; i < sent; i++) {
            results->line_free_ns = line_after(results, results->line_free_ns, results->head, now_ns);
            results->head = (results->head + 1) % results->ring;
            results->waiting--;
        }
    }
    return 0;
}

/* --- the loop --- */

/* On return the engine has no result that is due, or the ring is full. */
static int serve(struct tb_edge *edge, int64_t now_ns) {
    struct tb_results *results = edge->results;
    int status = send_due(results, now_ns);
    while (!status && room(results)) {
        uint32_t first = free_row(results), capacity = results->ring - first;
        if (capacity > room(results)) capacity = room(results);
        if (capacity > TB_RECEIVE_BATCH) capacity = TB_RECEIVE_BATCH;
        int32_t *payloads = (int32_t *)(void *)(row_at(results, first) + HEADER_BYTES);
        size_t count = edge->poll(edge->engine, edge->out, payloads, results->stride / 4, capacity, now_ns);
        for (size_t i = 0; i < count; i++) add_result(results, edge->out, i);
        status = send_due(results, now_ns);
        if (count < capacity) break;
    }
    return status;
}

static bool can_receive(const struct tb_edge *edge) { return room(edge->results) >= 2 * TB_RECEIVE_BATCH; }

static void note_occupancy(struct tb_occupancy *record, uint64_t high_water, int64_t now_ns) {
    if (high_water > record->peak) record->peak = (uint32_t)high_water;
    if (now_ns < record->next_ns || record->peak == record->last || record->count == record->capacity) return;
    record->times_ns[record->count] = now_ns;
    record->slots[record->count++] = record->peak;
    record->last = record->peak;
    record->peak = 0;
    record->next_ns = now_ns + record->interval_ns;
}

/* Whether the batch has contributions of awaited rounds; notes the newest of these rounds. */
static bool awaited_has_come(struct tb_edge *edge, size_t batch) {
    uint32_t furthest = 0;
    bool come = false;
    for (size_t i = 0; i < batch; i++) {
        uint32_t ahead = edge->in->round[i] - edge->awaited_round;
        if (ahead >= edge->awaited_rounds) continue;
        if (ahead > furthest) furthest = ahead;
        come = true;
    }
    edge->newest_round = edge->awaited_round + furthest;
    return come;
}

/* Take a batch from the socket and submit it. Returns 0, a tb_turn, or minus an errno. */
static int take_batch(struct tb_edge *edge) {
    int count = tb_receive(edge->receive_fd, edge->shape, edge->rows, edge->stride, edge->in, edge->sizes, edge->probes,
                           edge->probe_count, edge->refused, edge->taken);
    if (count < 0) return -errno;
    edge->resting = *edge->taken < tb_receive_batch(edge->stride);
    const int32_t *payloads = (const int32_t *)(const void *)(edge->rows + HEADER_BYTES);
    size_t batch = (size_t)count;
    if (batch) {
        int64_t now_ns = monotonic_ns();
        if (edge->submit(edge->engine, edge->in, payloads, edge->stride / 4, batch, now_ns) != batch) {
            edge->held = (uint32_t)count;
            return TB_TURN_ENGINE_FAILED;
        }
        note_occupancy(edge->occupancy, edge->take_high_water(edge->engine), now_ns);
    }
    for (size_t i = 0; i < batch; i++)
        if (edge->in->verdict[i] == TB_BYPASSED_COLLISION || edge->in->verdict[i] == TB_BYPASSED_LATE)
            add_bypassed(edge->results, edge->rows + i * edge->stride, edge->sizes[i], edge->in->shard[i]);
    if (awaited_has_come(edge, batch)) return TB_TURN_ROUND;
    return *edge->probe_count ? TB_TURN_PROBES : 0;
}

/* How long nothing is due unless something arrives, at most a second. */
static struct timespec wait_time(const struct tb_edge *edge, int64_t now_ns) {
    int64_t wait_ns = SECOND_NS;
    if (edge->results->waiting) {
        double left_ns = next_send_ns(edge->results) - (double)now_ns;
        if (left_ns < (double)wait_ns) wait_ns = left_ns > 0 ? (int64_t)left_ns + 1 : 0;
    }
    int64_t deadline_ns = edge->next_deadline_ns(edge->engine);
    if (room(edge->results) && deadline_ns < now_ns + wait_ns) wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    if (edge->resting && edge->rest_ns < wait_ns) wait_ns = edge->rest_ns;
    return (struct timespec){.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
}

int tb_edge_run(struct tb_edge *edge) {
    for (;;) {
        struct pollfd watched[] = {{.fd = edge->control_fd, .events = POLLIN}, {.fd = edge->receive_fd, .events = POLLIN}};
        struct timespec wait = wait_time(edge, monotonic_ns());
        bool watching = !edge->resting && can_receive(edge);
        if (ppoll(watched, watching ? 2 : 1, &wait, NULL) < 0 && errno != EINTR) return -errno;
        edge->resting = 0;
        int turn = watching && watched[1].revents ? take_batch(edge) : 0;
        if (turn < 0 || turn == TB_TURN_ENGINE_FAILED) return turn;
        int status = serve(edge, monotonic_ns());
        if (status < 0) return status;
        if (turn) return turn;
        if (edge->occupancy->count == edge->occupancy->capacity) return TB_TURN_OCCUPANCY;
        if (watched[0].revents) return TB_TURN_CONTROL;
    }
}
