/* CRC-32 (IEEE 802.3) as zlib computes it. */
#ifndef TESTBED_CRC32_H
#define TESTBED_CRC32_H

#include <stddef.h>
#include <stdint.h>

#define TB_CHECKSUM_BYTES 4u

/* Continue `crc` (0 at the start) over `size` bytes. */
uint32_t tb_crc32(uint32_t crc, const uint8_t *data, size_t size);

/* The checksum of a datagram of at least 64 bytes, whose header ends with the checksum field: that counts as zero. */
uint32_t tb_datagram_crc32(const uint8_t *datagram, size_t size);

#endif
