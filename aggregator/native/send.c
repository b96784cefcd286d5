#include "send.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "crc32.h"

#define HEADER_BYTES 64u
#define CHECKSUM_AT 60u
#define VALUE_BYTES 4u
#define MAGIC 0x5442u
#define VERSION 1u

static void put16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value) {
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

static void put64(uint8_t *at, uint64_t value) {
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

void tb_seal(uint8_t *rows, size_t stride, struct tb_outgoing *records, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint8_t *datagram = rows + i * stride;
        struct tb_outgoing *record = &records[i];
        memset(datagram, 0, HEADER_BYTES);
        put16(datagram, MAGIC);
        datagram[2] = VERSION;
        datagram[3] = record->kind;
        datagram[5] = record->reason;
        datagram[6] = record->source;
        datagram[7] = record->contributors;
        put32(datagram + 8, record->job);
        put32(datagram + 12, record->epoch);
        put32(datagram + 16, record->round);
        put16(datagram + 20, record->shard);
        put16(datagram + 22, record->value_count);
        put32(datagram + 24, record->chunk);
        put32(datagram + 28, record->number);
        put32(datagram + 32, record->trailing_edge);
        put64(datagram + 40, record->bitmap);
        record->size = HEADER_BYTES + VALUE_BYTES * record->value_count;
        put32(datagram + CHECKSUM_AT, tb_crc32(0, datagram, record->size));
    }
}

int tb_send(int fd, uint16_t port, uint8_t *rows, size_t stride, const struct tb_outgoing *records, size_t count) {
    struct mmsghdr messages[TB_SEND_BATCH];
    struct iovec vectors[TB_SEND_BATCH];
    struct sockaddr_in destinations[TB_SEND_BATCH];
    if (count > TB_SEND_BATCH) count = TB_SEND_BATCH;
    memset(messages, 0, count * sizeof messages[0]);
    for (size_t i = 0; i < count; i++) {
        vectors[i] = (struct iovec){.iov_base = rows + i * stride, .iov_len = records[i].size};
        destinations[i] = (struct sockaddr_in){
            .sin_family = AF_INET,
            .sin_port = htons(port),
            .sin_addr.s_addr = records[i].destination,
        };
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = &destinations[i],
            .msg_namelen = sizeof destinations[i],
            .msg_iov = &vectors[i],
            .msg_iovlen = 1,
        };
    }
    int sent = sendmmsg(fd, messages, (unsigned)count, MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR)) return 0;
    return sent;
}
