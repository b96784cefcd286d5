/* The keyed tag of a packet: SipHash-2-4 (docs/wire-format.md). */
#ifndef TESTBED_TAG_H
#define TESTBED_TAG_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"

#define TB_KEY_BYTES 16u
#define TB_TAG_AT 48u

/* The tag of a datagram of at least 64 bytes; its tag and checksum fields count as zero. */
TB_EXPORT uint64_t tb_tag(const uint8_t *key, const uint8_t *datagram, size_t size);

#endif
