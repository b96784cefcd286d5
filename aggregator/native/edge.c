#include "edge.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <time.h>

#include "../wire/native/packet.h"

#define SECOND_NS INT64_C(1000000000)

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* On return the engine has no result that is due, or the ring is full. */
static int serve(struct tb_edge *edge, int64_t now_ns) {
    struct tb_results *results = edge->results;
    int status = tb_send_repairs(edge->repairs, results, now_ns);
    if (!status) status = tb_send_due(results, now_ns);
    while (!status && tb_room(results)) {
        uint32_t first = tb_free_row(results), capacity = results->ring - first;
        if (capacity > tb_room(results)) capacity = tb_room(results);
        if (capacity > TB_RECEIVE_BATCH) capacity = TB_RECEIVE_BATCH;
        int32_t *payloads = (int32_t *)(void *)(tb_row_at(results, first) + HEADER_BYTES);
        size_t count = edge->poll(edge->engine, edge->out, payloads, results->stride / 4, capacity, now_ns);
        for (size_t i = 0; i < count; i++) tb_add_result(results, edge->out, i);
        status = tb_send_due(results, now_ns);
        if (count < capacity) break;
    }
    return status;
}

static bool can_receive(const struct tb_edge *edge) { return tb_room(edge->results) >= 2 * TB_RECEIVE_BATCH; }

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
            tb_add_bypassed(edge->results, edge->rows + i * edge->stride, edge->sizes[i], edge->in->shard[i]);
    if (awaited_has_come(edge, batch)) return TB_TURN_ROUND;
    return *edge->probe_count ? TB_TURN_PROBES : 0;
}

/* How long nothing is due unless something arrives, at most a second. */
static struct timespec wait_time(const struct tb_edge *edge, int64_t now_ns) {
    int64_t wait_ns = SECOND_NS;
    if (edge->results->waiting) {
        double left_ns = tb_next_send_ns(edge->results) - (double)now_ns;
        if (left_ns < (double)wait_ns) wait_ns = left_ns > 0 ? (int64_t)left_ns + 1 : 0;
    }
    double repair_ns = tb_next_repair_ns(edge->repairs, edge->results) - (double)now_ns;
    if (repair_ns < (double)wait_ns) wait_ns = repair_ns > 0 ? (int64_t)repair_ns + 1 : 0;
    int64_t deadline_ns = edge->next_deadline_ns(edge->engine);
    if (tb_room(edge->results) && deadline_ns < now_ns + wait_ns) wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    if (edge->resting && edge->rest_ns < wait_ns) wait_ns = edge->rest_ns;
    return (struct timespec){.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
}

int tb_edge_run(struct tb_edge *edge) {
    for (;;) {
        /* A descriptor below 0 is not looked at. */
        struct pollfd watched[] = {{.fd = edge->control_fd, .events = POLLIN},
                                   {.fd = can_receive(edge) ? edge->receive_fd : -1, .events = POLLIN},
                                   {.fd = edge->repairs->fd, .events = POLLIN}};
        struct timespec wait = wait_time(edge, monotonic_ns());
        if (ppoll(watched, edge->resting ? 1 : 3, &wait, NULL) < 0 && errno != EINTR) return -errno;
        bool watching = !edge->resting;
        edge->resting = 0;
        int turn = watching && watched[1].revents ? take_batch(edge) : 0;
        if (turn < 0 || turn == TB_TURN_ENGINE_FAILED) return turn;
        int status = 0;
        if (watching && watched[2].revents) {
            edge->resting = 1;
            status = tb_take_requests(edge->repairs, edge->results, monotonic_ns());
        }
        if (!status) status = serve(edge, monotonic_ns());
        if (status < 0) return status;
        if (turn) return turn;
        if (edge->occupancy->count == edge->occupancy->capacity) return TB_TURN_OCCUPANCY;
        if (watched[0].revents) return TB_TURN_CONTROL;
    }
}
