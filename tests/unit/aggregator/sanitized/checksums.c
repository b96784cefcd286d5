/* Every way of computing the checksum that this CPU has, against the plainest one; the buffers are exactly as long as what
 * is summed. Prints the ways that were tried. */
#include "../../../../aggregator/wire/native/crc32.c"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t bit_by_bit(const uint8_t *data, size_t size) {
    uint32_t remainder = ~0u;
    for (size_t i = 0; i < size; i++) {
        remainder ^= data[i];
        for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
    }
    return ~remainder;
}

static bool same(folding *way, const char *name) {
    fold = way;
    for (size_t size = 0; size < 1500; size++) {
        uint8_t *data = malloc(size ? size : 1);
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)(rand() >> 7);
        uint32_t wanted = bit_by_bit(data, size);
        bool right = tb_crc32(0, data, size) == wanted;
        if (size > 100) right &= tb_crc32(tb_crc32(0, data, 97), data + 97, size - 97) == wanted;
        if (size >= BLOCK) {
            uint32_t found = tb_datagram_crc32(data, size);
            memset(data + BLOCK - TB_CHECKSUM_BYTES, 0, TB_CHECKSUM_BYTES);
            right &= found == bit_by_bit(data, size);
        }
        free(data);
        if (!right) {
            printf("%s: wrong at %zu bytes\n", name, size);
            return false;
        }
    }
    printf("%s\n", name);
    return true;
}

int main(void) {
    bool right = same(fold_portable, "portable");
#if defined(__x86_64__)
    if (best_folding() != fold_portable) right &= same(fold_narrow, "narrow");
    if (best_folding() == fold_wide) right &= same(fold_wide, "wide");
#endif
    return right ? 0 : 1;
}
