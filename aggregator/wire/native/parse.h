/* The parser of packets in C, for edges and hosts; aggregator/wire/packet.py is the one in Python. */
#ifndef TESTBED_PARSE_H
#define TESTBED_PARSE_H

#include <stddef.h>
#include <stdint.h>

#include "packet.h"

/* Why a datagram was refused, by the parser or by who looks further; the order is that of REASONS in
 * aggregator/repair.py. */
enum tb_refusal {
    TB_ADMITTED = 0,
    TB_BAD_LENGTH,
    TB_BAD_MAGIC,
    TB_BAD_VERSION,
    TB_BAD_KIND,
    TB_BAD_CHECKSUM,
    TB_BAD_GROUP,
    TB_BAD_SOURCE,
    TB_BAD_EPOCH,
    TB_BAD_TAG,
    TB_BAD_STREAM, /* of a request: not of this numbering */
    TB_REFUSALS
};

/* Whether a whole datagram is a packet of this version, with the tag of `key` unless that is NULL; its header is filled
 * in as far as it could be read. */
enum tb_refusal tb_parse(const uint8_t *datagram, size_t size, const uint8_t *key, struct tb_header *header);

#endif
