/* Every way of computing the checksum that this CPU has, against the plainest one: every length up to MOST, at every
 * alignment, in memory that ends where the message ends. Prints the ways that were tried. */
#include "../../../../aggregator/wire/native/crc32.c"

#include <stdio.h>
#include <stdlib.h>

#define MOST 1500u /* the widest way is in its main loop from 512 bytes on */
#define ALIGNMENTS 64u
#define FIRST_PART 97u

static uint32_t plain[MOST + 1], blanked[MOST + 1]; /* by length */

/* The checksums of the first 0, 1, 2, … bytes, one bit a step. */
static void bit_by_bit(const uint8_t *data, uint32_t *checksums) {
    uint32_t remainder = ~0u;
    for (size_t i = 0; i < MOST; i++) {
        checksums[i] = ~remainder;
        remainder ^= data[i];
        for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
    }
    checksums[MOST] = ~remainder;
}

static bool right(const uint8_t *data, size_t size) {
    if (tb_crc32(0, data, size) != plain[size]) return false;
    if (size > FIRST_PART && tb_crc32(plain[FIRST_PART], data + FIRST_PART, size - FIRST_PART) != plain[size])
        return false;
    return size < BLOCK || tb_datagram_crc32(data, size) == blanked[size];
}

static bool right_everywhere(folding *way, const char *name, const uint8_t *message) {
    fold = way;
    for (size_t alignment = 0; alignment < ALIGNMENTS; alignment++)
        for (size_t size = 0; size <= MOST; size++) {
            void *memory;
            if (posix_memalign(&memory, ALIGNMENTS, alignment + size + !(alignment + size))) return false;
            uint8_t *data = (uint8_t *)memory + alignment;
            memcpy(data, message, size);
            bool fine = right(data, size);
            free(memory);
            if (!fine) {
                printf("%s: wrong at %zu bytes, %zu beyond an alignment of %u\n", name, size, alignment, ALIGNMENTS);
                return false;
            }
        }
    printf("%s\n", name);
    return true;
}

int main(void) {
    uint8_t message[MOST], blank[MOST];
    for (size_t i = 0; i < MOST; i++) message[i] = blank[i] = (uint8_t)(rand() >> 7);
    memset(blank + BLOCK - TB_CHECKSUM_BYTES, 0, TB_CHECKSUM_BYTES);
    bit_by_bit(message, plain);
    bit_by_bit(blank, blanked);
    bool fine = right_everywhere(fold_portable, "portable", message);
#if defined(__x86_64__)
    if (best_folding() != fold_portable) fine &= right_everywhere(fold_narrow, "narrow", message);
    if (best_folding() == fold_wide) fine &= right_everywhere(fold_wide, "wide", message);
#endif
    return fine ? 0 : 1;
}
