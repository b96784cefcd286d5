#include "packet.h"

#include <string.h>
#include <zlib.h>

#define MAGIC 0x5442
#define VERSION 1
#define FIRST_KIND 1
#define LAST_KIND 3
#define LAST_REASON 4
#define CHECKSUM_AT 60

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get16(at) << 16 | get16(at + 2);
}

static uint64_t get64(const uint8_t *at)
{
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

static void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

static uint32_t checksum(const uint8_t *datagram, size_t size)
{
    static const uint8_t none[4];
    uLong crc = crc32(0, datagram, CHECKSUM_AT);
    crc = crc32(crc, none, sizeof none);
    return (uint32_t)crc32(crc, datagram + PACKET_HEADER_BYTES, (uInt)(size - PACKET_HEADER_BYTES));
}

enum packet_refusal packet_parse(const uint8_t *datagram, size_t size, struct packet_record *record)
{
    if (size < PACKET_HEADER_BYTES)
        return PACKET_BAD_LENGTH;
    if (get16(datagram) != MAGIC)
        return PACKET_BAD_MAGIC;
    if (datagram[2] != VERSION)
        return PACKET_BAD_VERSION;
    if (datagram[3] < FIRST_KIND || datagram[3] > LAST_KIND || datagram[5] > LAST_REASON)
        return PACKET_BAD_KIND;
    uint16_t value_count = get16(datagram + 22);
    if (size != PACKET_HEADER_BYTES + (size_t)PACKET_VALUE_BYTES * value_count)
        return PACKET_BAD_LENGTH;
    if (checksum(datagram, size) != get32(datagram + CHECKSUM_AT))
        return PACKET_BAD_CHECKSUM;
    record->kind = datagram[3];
    record->flags = datagram[4];
    record->reason = datagram[5];
    record->source = datagram[6];
    record->contributors = datagram[7];
    record->job = get32(datagram + 8);
    record->epoch = get32(datagram + 12);
    record->round = get32(datagram + 16);
    record->shard = get16(datagram + 20);
    record->value_count = value_count;
    record->chunk = get32(datagram + 24);
    record->number = get32(datagram + 28);
    record->trailing_edge = get32(datagram + 32);
    record->number_format = datagram[36];
    record->bitmap = get64(datagram + 40);
    record->tag = get64(datagram + 48);
    return PACKET_ACCEPTED;
}

size_t packet_seal(uint8_t *datagram, const struct packet_record *record)
{
    size_t size = PACKET_HEADER_BYTES + (size_t)PACKET_VALUE_BYTES * record->value_count;
    memset(datagram, 0, PACKET_HEADER_BYTES);
    put16(datagram, MAGIC);
    datagram[2] = VERSION;
    datagram[3] = record->kind;
    datagram[4] = record->flags;
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
    datagram[36] = record->number_format;
    put64(datagram + 40, record->bitmap);
    put64(datagram + 48, record->tag);
    put32(datagram + CHECKSUM_AT, checksum(datagram, size));
    return size;
}
