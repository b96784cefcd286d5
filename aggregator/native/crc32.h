/* CRC-32 (IEEE 802.3) as zlib computes it. */
#ifndef TESTBED_CRC32_H
#define TESTBED_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Continue `crc` (0 at the start) over `size` bytes. */
uint32_t tb_crc32(uint32_t crc, const uint8_t *data, size_t size);

#endif
