#include "repair.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "../wire/native/packet.h"
#include "../wire/native/tag.h"

#define REQUEST_BYTES 128u
#define LONGEST_BEAT 8

/* Whether a datagram is a request of the host that it comes from, for packets of a stream that there is. */
static enum tb_refusal admit(const struct tb_repairs *repairs, const struct tb_results *results, const uint8_t *datagram,
                             size_t size, uint32_t source, struct tb_header *header) {
    enum tb_refusal refusal = tb_parse(datagram, size, results->key, header);
    if (refusal != TB_ADMITTED) return refusal;
    if (header->shard >= repairs->shards || results->streams[header->shard].address != source ||
        header->source != results->island_id)
        return TB_BAD_SOURCE;
    if (header->job != repairs->job) return TB_BAD_EPOCH;
    if (header->kind != NACK) return TB_BAD_KIND;
    if (header->value_count || !(header->bitmap & 1) ||
        header->contributors != __builtin_popcountll(header->bitmap))
        return TB_BAD_LENGTH;
    return header->stream == results->stream ? TB_ADMITTED : TB_BAD_STREAM;
}

/* The row that holds a number that has been sent; false if none does. */
static bool find_held(const struct tb_results *results, uint32_t shard, uint32_t number, uint32_t *row) {
    uint32_t found = results->row_of[(size_t)shard * results->index + number % results->index];
    uint32_t age = (results->head + results->ring - 1 - found) % results->ring;
    *row = found;
    return age < results->held && results->shards[found] == shard &&
           get32(tb_row_at(results, found) + NUMBER_AT) == number;
}

static int send_small(const struct tb_results *results, const struct tb_header *header) {
    uint8_t datagram[HEADER_BYTES];
    const struct tb_stream *stream = &results->streams[header->shard];
    put_header(datagram, header);
    put32(datagram + TRAILING_EDGE_AT, stream->trailing);
    tb_seal(results->key, datagram, sizeof datagram);
    struct sockaddr_in host = {.sin_family = AF_INET, .sin_port = htons(RESULT_PORT)};
    host.sin_addr.s_addr = stream->address;
    ssize_t sent = sendto(results->fd, datagram, sizeof datagram, MSG_DONTWAIT, (struct sockaddr *)&host, sizeof host);
    /* One that does not fit the buffer is as good as lost on the way. */
    return sent < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR ? -errno : 0;
}

static int answer(struct tb_repairs *repairs, struct tb_results *results, const struct tb_header *request,
                  int64_t now_ns) {
    struct tb_stream *stream = &results->streams[request->shard];
    double patience_ns = (double)(repairs->requests_at_once - 1) * (double)repairs->interval_ns;
    if (stream->whole_ns - (double)now_ns > patience_ns) {
        repairs->counts[TB_NACKS_LIMITED]++;
        return 0;
    }
    double whole_ns = stream->whole_ns > (double)now_ns ? stream->whole_ns : (double)now_ns;
    stream->whole_ns = whole_ns + (double)repairs->interval_ns;
    repairs->counts[TB_NACKS]++;
    tb_release_old(results, now_ns);
    uint64_t gone = 0;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t number = request->number + i, row;
        if (!(request->bitmap >> i & 1)) continue;
        if ((int32_t)(number - stream->unsent) >= 0) {
            repairs->counts[TB_REPAIRS_REFUSED]++;
        } else if (!find_held(results, request->shard, number, &row)) {
            gone |= UINT64_C(1) << i;
        } else if (now_ns - results->asked_ns[row] < repairs->interval_ns || repairs->waiting == TB_REPAIR_QUEUE) {
            repairs->counts[TB_REPAIRS_REFUSED]++;
        } else {
            results->asked_ns[row] = now_ns;
            repairs->queue[(repairs->head + repairs->waiting++) % TB_REPAIR_QUEUE] = (uint64_t)request->shard << 32 | number;
        }
    }
    if (!gone) return 0;
    int count = __builtin_popcountll(gone);
    repairs->counts[TB_GONE] += (uint64_t)count;
    repairs->counts[TB_GONE_ANSWERS]++;
    const struct tb_header header = {
        .kind = GONE,
        .source = request->source,
        .contributors = (uint8_t)count,
        .job = request->job,
        .epoch = request->epoch,
        .round = request->round,
        .shard = request->shard,
        .number = request->number,
        .stream = request->stream,
        .bitmap = gone,
    };
    return send_small(results, &header);
}

int tb_request(struct tb_repairs *repairs, struct tb_results *results, const uint8_t *datagram, size_t size,
               uint32_t source, int64_t now_ns) {
    struct tb_header header;
    enum tb_refusal refusal = admit(repairs, results, datagram, size, source, &header);
    repairs->refused[refusal] += refusal != TB_ADMITTED;
    if (refusal != TB_ADMITTED) return (int)refusal;
    return answer(repairs, results, &header, now_ns);
}

int tb_take_requests(struct tb_repairs *repairs, struct tb_results *results, int64_t now_ns) {
    struct mmsghdr messages[TB_RECEIVE_BATCH];
    struct iovec vectors[TB_RECEIVE_BATCH];
    struct sockaddr_in sources[TB_RECEIVE_BATCH];
    uint8_t datagrams[TB_RECEIVE_BATCH][REQUEST_BYTES];
    for (size_t i = 0; i < TB_RECEIVE_BATCH; i++) {
        vectors[i] = (struct iovec){.iov_base = datagrams[i], .iov_len = REQUEST_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &sources[i],
                                              .msg_namelen = sizeof sources[i],
                                              .msg_iov = &vectors[i],
                                              .msg_iovlen = 1};
    }
    int received = recvmmsg(repairs->fd, messages, TB_RECEIVE_BATCH, MSG_DONTWAIT, NULL);
    if (received < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (int i = 0; i < received; i++) {
        int status = tb_request(repairs, results, datagrams[i], messages[i].msg_len, sources[i].sin_addr.s_addr, now_ns);
        if (status < 0) return status;
    }
    return 0;
}

static double next_queued_ns(const struct tb_repairs *repairs, const struct tb_results *results) {
    double shared = repairs->whole_ns - results->ahead_ns, line = tb_next_send_ns(results);
    return shared > line ? shared : line;
}

static int send_queued(struct tb_repairs *repairs, struct tb_results *results, int64_t now_ns) {
    while (repairs->waiting && next_queued_ns(repairs, results) <= (double)now_ns) {
        uint64_t queued = repairs->queue[repairs->head];
        uint32_t shard = (uint32_t)(queued >> 32), row;
        if (find_held(results, shard, (uint32_t)queued, &row)) {
            uint8_t *at = tb_row_at(results, row);
            uint32_t size = results->sizes[row];
            at[FLAGS_AT] |= FLAG_RETRANSMITTED;
            tb_seal_row(results, row);
            struct sockaddr_in host = {.sin_family = AF_INET, .sin_port = htons(RESULT_PORT)};
            host.sin_addr.s_addr = results->streams[shard].address;
            if (sendto(results->fd, at, size, MSG_DONTWAIT, (struct sockaddr *)&host, sizeof host) < 0) {
                if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) return -errno;
                results->retry_ns = now_ns + TB_RETRY_NS;
                return 0;
            }
            double free_ns = results->line_free_ns;
            results->line_free_ns = tb_line_after(results, free_ns, size, now_ns);
            double whole_ns = repairs->whole_ns > (double)now_ns ? repairs->whole_ns : (double)now_ns;
            repairs->whole_ns = whole_ns + (size + FRAME_OVERHEAD_BYTES) * results->ns_per_byte / repairs->share;
            repairs->counts[TB_REPAIRS]++;
            repairs->counts[TB_REPAIR_BYTES] += size + FRAME_OVERHEAD_BYTES;
        }
        repairs->head = (repairs->head + 1) % TB_REPAIR_QUEUE;
        repairs->waiting--;
    }
    return 0;
}

static int beat(struct tb_repairs *repairs, struct tb_results *results, uint32_t shard, int64_t now_ns) {
    struct tb_stream *stream = &results->streams[shard];
    int64_t quiet_ns = now_ns - stream->last_ns, longest_ns = LONGEST_BEAT * results->heartbeat_ns;
    /* The quieter it has been, the rarer; what is not held any more nobody can ask for. */
    stream->beat_ns = quiet_ns > results->window_ns ? INT64_MAX : now_ns + (quiet_ns < longest_ns ? quiet_ns : longest_ns);
    repairs->counts[TB_HEARTBEATS]++;
    const struct tb_header header = {
        .kind = HEARTBEAT,
        .source = (uint8_t)results->island_id,
        .job = repairs->job,
        .epoch = stream->epoch,
        .round = stream->round,
        .shard = (uint16_t)shard,
        .number = stream->unsent - 1,
        .stream = results->stream,
    };
    return send_small(results, &header);
}

int tb_send_repairs(struct tb_repairs *repairs, struct tb_results *results, int64_t now_ns) {
    int status = send_queued(repairs, results, now_ns);
    for (uint32_t shard = 0; !status && shard < repairs->shards; shard++)
        if (results->streams[shard].beat_ns <= now_ns) status = beat(repairs, results, shard, now_ns);
    return status;
}

double tb_next_repair_ns(const struct tb_repairs *repairs, const struct tb_results *results) {
    double due_ns = repairs->waiting ? next_queued_ns(repairs, results) : INFINITY;
    for (uint32_t shard = 0; shard < repairs->shards; shard++)
        if ((double)results->streams[shard].beat_ns < due_ns) due_ns = (double)results->streams[shard].beat_ns;
    return due_ns;
}
