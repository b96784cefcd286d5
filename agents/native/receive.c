#include "receive.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values travel as little-endian numbers and are added as they are"
#endif

#define SECOND_NS INT64_C(1000000000)
#define CONTROL_BYTES 64u
#define COMPLETE_REASON 1u
#define TIMEOUT_REASON 2u
#define FLOATS 1u

/* How far a number is ahead of another one in serial arithmetic. */
static int32_t ahead(uint32_t number, uint32_t of) { return (int32_t)(number - of); }

/* Whether who has sent a packet to the port of results may send such a one. */
static bool trusts(const struct tb_host *host, const struct tb_header *header, uint32_t sender) {
    if (sender == host->edge_address)
        return header->job == host->job && header->shard == host->shard &&
               (header->kind == RESULT || header->kind == CONTRIBUTION || header->kind == HEARTBEAT || header->kind == GONE);
    /* A stream is the edge's: one in a peer's packet would move the watch over what the edge has sent. */
    if (header->kind != CONTRIBUTION || header->flags != FLAG_RETRANSMITTED || header->stream) return false;
    for (uint32_t i = 0; i < host->peer_count; i++)
        if (host->peers[i].address == sender) return host->peers[i].island == header->source;
    return false;
}

/* Whether a packet of a stream comes in its turn; notes it then. */
static bool in_turn(struct tb_host *host, const struct tb_header *header, uint32_t trailing_edge) {
    if (host->unsure || header->stream != host->stream || header->number != host->next) return false;
    if (host->turns && ahead(trailing_edge, host->trailing_edge) < 0) return false;
    host->next++;
    host->trailing_edge = trailing_edge;
    host->turns++;
    return true;
}

/* Whether it is a result or contribution of this host's part of the round, and all in it agrees. */
static bool is_ours(const struct tb_host *host, const struct tb_header *header) {
    if (header->job != host->job || header->epoch != host->epoch || header->round != host->round) return false;
    if (header->shard != host->shard || header->number_format != host->number_format) return false;
    uint64_t first = (uint64_t)header->chunk * host->values_per_chunk;
    if (first >= host->values) return false;
    uint64_t left = host->values - first;
    if (header->value_count != (left < host->values_per_chunk ? left : host->values_per_chunk)) return false;
    uint64_t bitmap = header->bitmap;
    if (!bitmap || bitmap & ~host->expected || header->contributors != (uint32_t)__builtin_popcountll(bitmap)) return false;
    uint32_t flags = header->flags;
    if (header->kind == RESULT) return header->source == host->island && (flags & ~FLAG_RETRANSMITTED) == 0;
    /* Passed on by the edge, that and repaired, or fetched. */
    return header->kind == CONTRIBUTION && flags && (flags & ~(FLAG_BYPASSED | FLAG_RETRANSMITTED)) == 0 &&
           header->source < 64 && bitmap == UINT64_C(1) << header->source;
}

static void add_integers(int32_t *restrict sums, const uint8_t *restrict payload, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, payload + 4 * i, sizeof value);
        sums[i] = (int32_t)((uint32_t)sums[i] + value); /* unsigned, whose overflow is defined */
    }
}

static void add_floats(int32_t *restrict sums, const uint8_t *restrict payload, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float sum, value;
        memcpy(&sum, &sums[i], sizeof sum);
        memcpy(&value, payload + 4 * i, sizeof value);
        sum += value;
        memcpy(&sums[i], &sum, sizeof sum);
    }
}

static void count_merged(uint64_t *counts, const struct tb_header *header) {
    if (header->flags & FLAG_RETRANSMITTED) counts[TB_COUNT_REPAIRED] += header->contributors;
    if (header->kind == CONTRIBUTION)
        counts[header->flags & FLAG_BYPASSED ? TB_COUNT_BYPASSED : TB_COUNT_FETCHED]++;
    else
        counts[header->reason == COMPLETE_REASON ? TB_COUNT_COMPLETE : TB_COUNT_PARTIAL]++;
}

/* Add a packet to the round's sums; what is not added is counted. */
static bool merge(struct tb_host *host, const struct tb_header *header, const uint8_t *payload) {
    if (!host->bitmaps || (header->job == host->job && header->round < host->round)) {
        /* Without a round at hand its memory is the trainer's: what comes then must not change it. */
        host->counts[TB_COUNT_LATE]++;
        return false;
    }
    if (!is_ours(host, header)) {
        host->counts[TB_COUNT_REFUSED]++;
        return false;
    }
    uint64_t *have = &host->have[header->chunk];
    if (header->bitmap & *have) {
        host->counts[header->bitmap & ~*have ? TB_COUNT_OVERLAPS : TB_COUNT_DUPLICATES]++;
        return false;
    }
    int32_t *sums = host->summed + (size_t)header->chunk * host->values_per_chunk;
    (host->number_format == FLOATS ? add_floats : add_integers)(sums, payload, header->value_count);
    *have |= header->bitmap;
    host->bitmaps[header->chunk] = *have;
    if (*have == host->expected) host->missing--;
    count_merged(host->counts, header);
    return true;
}

static bool wanted(struct tb_host *host, const struct tb_header *header) {
    /* What is told of a sum that was given up may be of no use after what comes next. */
    if (host->tell == TB_TELL_GIVEN_UP && header->reason == TIMEOUT_REASON) host->tell = TB_TELL_ALL;
    return host->tell == TB_TELL_ALL;
}

void tb_host_begin_batch(struct tb_host *host) { host->told_count = host->unsure = 0; }

void tb_host_take(struct tb_host *host, const uint8_t *datagram, size_t size, uint32_t sender, int64_t arrival_ns) {
    struct tb_header header;
    if (tb_parse(datagram, size, host->key, &header) != TB_ADMITTED || !trusts(host, &header, sender)) {
        host->counts[TB_COUNT_REFUSED]++;
        return;
    }
    uint32_t why = 0;
    if (header.kind == HEARTBEAT || header.kind == GONE) {
        why = TB_TOLD_PLACE;
    } else {
        if (header.stream && !in_turn(host, &header, get32(datagram + TRAILING_EDGE_AT))) why = TB_TOLD_PLACE;
        if (merge(host, &header, datagram + HEADER_BYTES)) {
            host->last_arrival_ns = arrival_ns;
            host->waits_ns[host->merges++] = host->stamps.now_ns - arrival_ns;
            if (wanted(host, &header)) why |= TB_TOLD_MERGED;
        }
    }
    if (!why) return;
    host->unsure |= why & TB_TOLD_PLACE;
    memcpy(host->told + (size_t)host->told_count * HEADER_BYTES, datagram, HEADER_BYTES);
    host->told_why[host->told_count++] = (uint8_t)why;
}

/* Take a batch from the socket. Returns 0 or minus an errno. */
static int take_batch(struct tb_host *host) {
    struct mmsghdr messages[TB_HOST_BATCH];
    struct iovec vectors[TB_HOST_BATCH];
    struct sockaddr_in senders[TB_HOST_BATCH];
    _Alignas(struct cmsghdr) uint8_t controls[TB_HOST_BATCH][CONTROL_BYTES];
    uint32_t batch = tb_host_batch(host);
    for (size_t i = 0; i < batch; i++) {
        vectors[i] = (struct iovec){.iov_base = host->rows + i * host->stride, .iov_len = host->stride};
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = &senders[i],
            .msg_namelen = sizeof senders[i],
            .msg_iov = &vectors[i],
            .msg_iovlen = 1,
            .msg_control = controls[i],
            .msg_controllen = sizeof controls[i],
        };
    }
    int64_t began_ns = tb_monotonic_ns();
    int received = recvmmsg(host->fd, messages, batch, MSG_DONTWAIT, NULL);
    if (received < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    tb_read_clocks(&host->stamps);
    for (int i = 0; i < received; i++) {
        struct msghdr *message = &messages[i].msg_hdr;
        /* One that was longer than its row has lost its end, so it is none at all. */
        size_t size = message->msg_flags & MSG_TRUNC ? 0 : messages[i].msg_len;
        tb_host_take(host, vectors[i].iov_base, size, senders[i].sin_addr.s_addr, tb_arrival_ns(&host->stamps, message));
    }
    if ((uint32_t)received < batch) host->stamps.empty_ns = began_ns;
    return 0;
}

int tb_host_wait(struct tb_host *host, int other_fd, int64_t until_ns) {
    for (;;) {
        int64_t wait_ns = until_ns - tb_monotonic_ns();
        if (wait_ns < 0) wait_ns = 0;
        struct timespec wait = {.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
        struct pollfd watched[] = {{.fd = host->fd, .events = POLLIN}, {.fd = other_fd, .events = POLLIN}};
        tb_host_begin_batch(host);
        if (ppoll(watched, 2, &wait, NULL) < 0) return errno == EINTR ? 0 : -errno;
        uint32_t missed = host->missing;
        int status = watched[0].revents ? take_batch(host) : 0;
        if (status < 0) return status;
        if (watched[1].revents) return 1;
        if (host->told_count || (missed && !host->missing) || tb_monotonic_ns() >= until_ns) return 0;
    }
}
