#include "receive.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "../wire/native/packet.h"
#include "../wire/native/parse.h"

#define PROBE_BYTES 8u
#define CONTROL_BYTES 64u

/* How many values the chunk has; 0 if there is no such chunk or shard. */
static uint32_t chunk_values(const struct tb_shape *shape, uint16_t shard, uint32_t chunk) {
    if (shard >= shape->shards) return 0;
    uint64_t first = (uint64_t)chunk * shape->values_per_chunk;
    if (first >= shape->shard_values[shard]) return 0;
    uint64_t left = shape->shard_values[shard] - first;
    return left < shape->values_per_chunk ? (uint32_t)left : shape->values_per_chunk;
}

static enum tb_refusal admit(const struct tb_shape *shape, const uint8_t *datagram, size_t size, uint32_t group,
                             uint32_t source, struct tb_header *header) {
    enum tb_refusal refusal = tb_parse(datagram, size, shape->key, header);
    if (refusal != TB_ADMITTED) return refusal;
    const struct tb_flow *flow = shape->flows, *end = shape->flows + shape->flow_count;
    while (flow < end && (flow->group != group || flow->source != source)) flow++;
    if (flow == end) return TB_BAD_GROUP;
    if (flow->contributor != header->source) return TB_BAD_SOURCE;
    if (header->job != shape->job) return TB_BAD_EPOCH;
    if (header->kind == PROBE) return size == HEADER_BYTES + PROBE_BYTES ? TB_ADMITTED : TB_BAD_LENGTH;
    if (header->kind != CONTRIBUTION || header->flags || header->number_format != shape->number_format)
        return TB_BAD_KIND;
    if (header->source >= 64 || header->bitmap != UINT64_C(1) << header->source || header->contributors != 1)
        return TB_BAD_SOURCE;
    uint32_t values = chunk_values(shape, header->shard, header->chunk);
    return values && header->value_count == values ? TB_ADMITTED : TB_BAD_LENGTH;
}

int tb_check(const struct tb_shape *shape, const uint8_t *datagram, size_t size, uint32_t group, uint32_t source) {
    struct tb_header header;
    return (int)admit(shape, datagram, size, group, source, &header);
}

static void note_probe(const struct tb_header *header, const uint8_t *datagram, struct tb_probe *probe) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint8_t *payload = datagram + HEADER_BYTES;
    uint64_t sent_ns = 0;
    for (int i = 7; i >= 0; i--) sent_ns = sent_ns << 8 | payload[i];
    *probe = (struct tb_probe){
        .sent_ns = sent_ns,
        .arrival_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec,
        .probe = header->chunk,
        .group = header->number,
    };
}

/* The address that a datagram was sent to; 0 if the kernel did not say. */
static uint32_t destination(struct msghdr *message) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != IPPROTO_IP || part->cmsg_type != IP_PKTINFO) continue;
        struct in_pktinfo info;
        memcpy(&info, CMSG_DATA(part), sizeof info);
        return info.ipi_addr.s_addr;
    }
    return 0;
}

int tb_receive(int fd, const struct tb_shape *shape, uint8_t *rows, size_t stride, const struct tb_headers *headers,
               uint32_t *sizes, struct tb_probe *probes, uint32_t *probe_count, uint64_t *refused, uint32_t *taken) {
    struct mmsghdr messages[TB_RECEIVE_BATCH];
    struct iovec vectors[TB_RECEIVE_BATCH];
    struct sockaddr_in sources[TB_RECEIVE_BATCH];
    _Alignas(struct cmsghdr) uint8_t controls[TB_RECEIVE_BATCH][CONTROL_BYTES];
    uint32_t batch = tb_receive_batch(stride);
    for (size_t i = 0; i < batch; i++) {
        vectors[i] = (struct iovec){.iov_base = rows + i * stride, .iov_len = stride};
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = &sources[i],
            .msg_namelen = sizeof sources[i],
            .msg_iov = &vectors[i],
            .msg_iovlen = 1,
            .msg_control = controls[i],
            .msg_controllen = sizeof controls[i],
        };
    }
    *taken = 0;
    *probe_count = 0;
    int received = recvmmsg(fd, messages, batch, MSG_DONTWAIT, NULL);
    if (received < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    *taken = (uint32_t)received;
    int count = 0;
    for (int i = 0; i < received; i++) {
        uint8_t *datagram = rows + (size_t)i * stride;
        size_t size = messages[i].msg_len;
        struct tb_header header;
        enum tb_refusal refusal = admit(shape, datagram, size, destination(&messages[i].msg_hdr),
                                        sources[i].sin_addr.s_addr, &header);
        if (refusal != TB_ADMITTED) {
            refused[refusal]++;
            continue;
        }
        if (header.kind == PROBE) {
            note_probe(&header, datagram, &probes[(*probe_count)++]);
            continue;
        }
        /* Rows that were refused, or hold probes, leave gaps; the engine wants none. */
        if (count != i) memcpy(rows + (size_t)count * stride, datagram, size);
        headers->job[count] = header.job;
        headers->epoch[count] = header.epoch;
        headers->round[count] = header.round;
        headers->shard[count] = header.shard;
        headers->chunk[count] = header.chunk;
        headers->value_count[count] = header.value_count;
        headers->source[count] = header.source;
        sizes[count++] = (uint32_t)size;
    }
    return count;
}
