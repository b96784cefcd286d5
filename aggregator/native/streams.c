#include "streams.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "../wire/native/crc32.h"
#include "../wire/native/packet.h"
#include "../wire/native/tag.h"

uint32_t tb_room(const struct tb_results *results) { return results->most_waiting - results->waiting; }

uint32_t tb_free_row(const struct tb_results *results) {
    return (results->head + results->waiting) % results->ring;
}

uint8_t *tb_row_at(const struct tb_results *results, uint32_t row) { return results->rows + row * results->stride; }

void tb_seal(const uint8_t *key, uint8_t *datagram, size_t size) {
    if (key) put64(datagram + TB_TAG_AT, tb_tag(key, datagram, size));
    put32(datagram + CHECKSUM_AT, tb_datagram_crc32(datagram, size));
}

void tb_seal_row(const struct tb_results *results, uint32_t row) {
    uint8_t *at = tb_row_at(results, row);
    uint32_t trailing = results->streams[results->shards[row]].trailing;
    put32(at + TRAILING_EDGE_AT, results->most_held ? trailing : get32(at + NUMBER_AT));
    tb_seal(results->key, at, results->sizes[row]);
}

/* Number the packet in the free row and put it in line. */
static void queue(struct tb_results *results, size_t size, uint32_t shard) {
    uint32_t row = tb_free_row(results), number = results->streams[shard].next++;
    uint8_t *at = tb_row_at(results, row);
    put32(at + NUMBER_AT, number);
    put32(at + STREAM_AT, results->stream);
    results->row_of[(size_t)shard * results->index + number % results->index] = row;
    results->sizes[row] = (uint32_t)size;
    results->shards[row] = shard;
    results->waiting++;
}

void tb_add_bypassed(struct tb_results *results, const uint8_t *datagram, size_t size, uint32_t shard) {
    uint8_t *copy = tb_row_at(results, tb_free_row(results));
    memcpy(copy, datagram, size);
    copy[FLAGS_AT] |= FLAG_BYPASSED;
    queue(results, size, shard);
}

void tb_add_result(struct tb_results *results, const struct tb_headers *headers, size_t i) {
    const struct tb_header header = {
        .kind = RESULT,
        .reason = headers->reason[i],
        .source = (uint8_t)results->island_id,
        .contributors = headers->contributors[i],
        .job = headers->job[i],
        .epoch = headers->epoch[i],
        .round = headers->round[i],
        .shard = headers->shard[i],
        .value_count = headers->value_count[i],
        .chunk = headers->chunk[i],
        .number_format = (uint8_t)results->number_format,
        .bitmap = headers->bitmap[i],
    };
    put_header(tb_row_at(results, tb_free_row(results)), &header);
    queue(results, HEADER_BYTES + VALUE_BYTES * header.value_count, header.shard);
}

static uint32_t oldest_row(const struct tb_results *results) {
    return (results->head + results->ring - results->held) % results->ring;
}

static void release_oldest(struct tb_results *results) {
    uint32_t row = oldest_row(results);
    results->streams[results->shards[row]].trailing = get32(tb_row_at(results, row) + NUMBER_AT) + 1;
    results->held--;
}

void tb_release_old(struct tb_results *results, int64_t now_ns) {
    while (results->held && now_ns - results->sent_ns[oldest_row(results)] > results->window_ns) release_oldest(results);
}

double tb_next_send_ns(const struct tb_results *results) {
    double paced = results->line_free_ns - results->ahead_ns, retry = (double)results->retry_ns;
    return paced > retry ? paced : retry;
}

double tb_line_after(const struct tb_results *results, double free_ns, size_t size, int64_t now_ns) {
    double start = free_ns > (double)now_ns ? free_ns : (double)now_ns;
    return start + (double)(size + FRAME_OVERHEAD_BYTES) * results->ns_per_byte;
}

/* The first row that waits has been sent. */
static void hold_first(struct tb_results *results, int64_t now_ns) {
    uint32_t row = results->head;
    const uint8_t *at = tb_row_at(results, row);
    struct tb_stream *stream = &results->streams[results->shards[row]];
    results->line_free_ns = tb_line_after(results, results->line_free_ns, results->sizes[row], now_ns);
    results->sent_ns[row] = results->asked_ns[row] = stream->last_ns = now_ns;
    stream->beat_ns = results->most_held ? now_ns + results->heartbeat_ns : INT64_MAX;
    stream->unsent = get32(at + NUMBER_AT) + 1;
    stream->epoch = get32(at + EPOCH_AT);
    stream->round = get32(at + ROUND_AT);
    results->head = (row + 1) % results->ring;
    results->waiting--;
    results->held++;
    if (results->held > results->most_held) release_oldest(results);
}

int tb_send_due(struct tb_results *results, int64_t now_ns) {
    tb_release_old(results, now_ns);
    while (results->waiting && tb_next_send_ns(results) <= (double)now_ns) {
        struct mmsghdr messages[TB_RECEIVE_BATCH];
        struct iovec vectors[TB_RECEIVE_BATCH];
        struct sockaddr_in hosts[TB_RECEIVE_BATCH];
        double free_ns = results->line_free_ns;
        uint32_t count = 0;
        while (count < TB_RECEIVE_BATCH && count < results->waiting && free_ns - results->ahead_ns <= (double)now_ns) {
            uint32_t row = (results->head + count) % results->ring;
            tb_seal_row(results, row);
            hosts[count] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(RESULT_PORT)};
            hosts[count].sin_addr.s_addr = results->streams[results->shards[row]].address;
            vectors[count] = (struct iovec){.iov_base = tb_row_at(results, row), .iov_len = results->sizes[row]};
            messages[count].msg_hdr = (struct msghdr){.msg_name = &hosts[count],
                                                      .msg_namelen = sizeof hosts[count],
                                                      .msg_iov = &vectors[count],
                                                      .msg_iovlen = 1};
            free_ns = tb_line_after(results, free_ns, results->sizes[row], now_ns);
            count++;
        }
        int sent = sendmmsg(results->fd, messages, count, MSG_DONTWAIT);
        if (sent < 0) {
            if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) return -errno;
            results->retry_ns = now_ns + TB_RETRY_NS;
            return 0;
        }
        for (int i = 0; i < sent; i++) hold_first(results, now_ns);
    }
    return 0;
}
