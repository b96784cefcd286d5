/* The packets between hosts and edges, byte by byte as in docs/wire-format.md. The only parser in C. */
#ifndef TESTBED_PACKET_H
#define TESTBED_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define PACKET_HEADER_BYTES 64
#define PACKET_VALUE_BYTES 4

/* As Refusal in packet.py. */
enum packet_refusal {
    PACKET_ACCEPTED = 0,
    PACKET_BAD_LENGTH = 1,
    PACKET_BAD_MAGIC = 2,
    PACKET_BAD_VERSION = 3,
    PACKET_BAD_KIND = 4,
    PACKET_BAD_CHECKSUM = 5,
};

/* A header in the machine's byte order, and how its datagram came. The same record as RECORD in batch.py. */
struct packet_record {
    uint64_t bitmap;
    uint64_t tag;
    uint32_t job;
    uint32_t epoch;
    uint32_t round;
    uint32_t chunk;
    uint32_t number;
    uint32_t trailing_edge;
    uint32_t source_address;      /* IPv4, as a number */
    uint32_t destination_address; /* 0: the kernel did not say */
    uint32_t size;                /* of the datagram, in bytes */
    uint16_t shard;
    uint16_t value_count;
    uint8_t kind;
    uint8_t flags;
    uint8_t reason;
    uint8_t source;
    uint8_t contributors;
    uint8_t number_format;
    uint8_t refusal; /* enum packet_refusal; when it is not 0 the header's fields mean nothing */
    uint8_t reserved;
};

_Static_assert(sizeof(struct packet_record) == 64, "batch.py maps this record");

/* Check a whole datagram; on PACKET_ACCEPTED the header's fields of `record` are set. Reads `size` bytes, no more. */
enum packet_refusal packet_parse(const uint8_t *datagram, size_t size, struct packet_record *record);

/* Write header and checksum before a payload that is in `datagram` already; returns the datagram's size, which must not
 * be more than there is room for. */
size_t packet_seal(uint8_t *datagram, const struct packet_record *record);

#endif
