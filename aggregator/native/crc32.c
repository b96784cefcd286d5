#include "crc32.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0xEDB88320u /* bit-reversed, as the whole computation is */

static uint32_t tables[8][256];

/* tables[k][b]: what byte b leaves in the remainder after k further zero bytes. */
__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t remainder = byte;
        for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = remainder;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
}

static uint32_t load32(const uint8_t *data) {
    return data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Eight bytes a step; `remainder` is not inverted. */
static uint32_t by_tables(uint32_t remainder, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = remainder ^ load32(data), high = load32(data + 4);
        remainder = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
                    tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^ tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    for (; size; data++, size--) remainder = remainder >> 8 ^ tables[0][(remainder ^ *data) & 255];
    return remainder;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Move a 128-bit piece of the message forward by a fixed distance: multiply its halves by x^distance mod P. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i piece, __m128i powers) {
    return _mm_xor_si128(_mm_clmulepi64_si128(piece, powers, 0x00), _mm_clmulepi64_si128(piece, powers, 0x11));
}

/* Reduce a multiple of 64 bytes to 16 bytes that have the same remainder, then take that by table. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t by_folding(uint32_t remainder, const uint8_t *data, size_t size) {
    const __m128i by_64_bytes = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16_bytes = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i *in = (const __m128i *)(const void *)data;
    __m128i pieces[4];
    for (int i = 0; i < 4; i++) pieces[i] = _mm_loadu_si128(in + i);
    pieces[0] = _mm_xor_si128(pieces[0], _mm_cvtsi32_si128((int)remainder));
    for (size_t at = 4; at < size / 16; at += 4)
        for (size_t i = 0; i < 4; i++)
            pieces[i] = _mm_xor_si128(fold(pieces[i], by_64_bytes), _mm_loadu_si128(in + at + i));
    __m128i all = pieces[0];
    for (int i = 1; i < 4; i++) all = _mm_xor_si128(fold(all, by_16_bytes), pieces[i]);
    uint8_t rest[16];
    memcpy(rest, &all, sizeof rest);
    return by_tables(0, rest, sizeof rest);
}

static bool can_fold(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
#else
static uint32_t by_folding(uint32_t remainder, const uint8_t *data, size_t size) {
    return by_tables(remainder, data, size);
}

static bool can_fold(void) { return false; }
#endif

uint32_t tb_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    uint32_t remainder = ~crc;
    size_t folded = can_fold() ? size / 64 * 64 : 0;
    if (folded) remainder = by_folding(remainder, data, folded);
    return ~by_tables(remainder, data + folded, size - folded);
}
