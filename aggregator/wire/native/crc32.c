#include "crc32.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0xEDB88320u /* bit-reversed, as the whole computation is */
#define BLOCK 64u

/* Continue a remainder (not inverted) over at least a block. If `blank`, the checksum field at the end of the first
 * block counts as zero. */
typedef uint32_t folding(uint32_t remainder, const uint8_t *data, size_t size, bool blank);

static uint32_t tables[8][256];
static folding *fold;

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

static uint32_t fold_portable(uint32_t remainder, const uint8_t *data, size_t size, bool blank) {
    if (!blank) return by_tables(remainder, data, size);
    static const uint8_t zeros[TB_CHECKSUM_BYTES];
    remainder = by_tables(remainder, data, BLOCK - TB_CHECKSUM_BYTES);
    remainder = by_tables(remainder, zeros, TB_CHECKSUM_BYTES);
    return by_tables(remainder, data + BLOCK, size - BLOCK);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define NARROW __attribute__((target("pclmul,sse4.1")))
#define WIDE __attribute__((target("vpclmulqdq,pclmul,avx512f,avx512vl,avx512dq")))
#define LANES 4

/* Multipliers that move 128 bits of the message forward by so many bits: x^(distance + 32) and x^(distance − 32) mod P
 * for their two halves. */
struct powers {
    uint64_t low, high;
};

static struct powers by_2048_bits, by_512_bits, by_384_bits, by_256_bits, by_128_bits;

static uint64_t power(uint32_t exponent) {
    uint32_t remainder = 0x80000000u; /* 1, bit-reversed */
    while (exponent--) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
    return (uint64_t)remainder << 1;
}

static struct powers forward(uint32_t bits) { return (struct powers){.low = power(bits + 32), .high = power(bits - 32)}; }

NARROW static inline __m128i powers_128(struct powers powers) {
    return _mm_set_epi64x((int64_t)powers.high, (int64_t)powers.low);
}

NARROW static inline __m128i move_128(__m128i piece, __m128i powers) {
    return _mm_xor_si128(_mm_clmulepi64_si128(piece, powers, 0x00), _mm_clmulepi64_si128(piece, powers, 0x11));
}

NARROW static inline __m128i load_128(const uint8_t *data) { return _mm_loadu_si128((const __m128i *)(const void *)data); }

/* What a piece and the bytes behind it leave, fewer than 16. */
static inline uint32_t reduce(__m128i piece, const uint8_t *rest, size_t size) {
    uint8_t bytes[sizeof piece];
    memcpy(bytes, &piece, sizeof bytes);
    return by_tables(by_tables(0, bytes, sizeof bytes), rest, size);
}

NARROW static uint32_t fold_narrow(uint32_t remainder, const uint8_t *data, size_t size, bool blank) {
    __m128i powers = powers_128(by_512_bits), pieces[LANES];
    const uint8_t *end = data + size;
    for (int i = 0; i < LANES; i++, data += sizeof *pieces) pieces[i] = load_128(data);
    if (blank) pieces[LANES - 1] = _mm_insert_epi32(pieces[LANES - 1], 0, 3);
    pieces[0] = _mm_xor_si128(pieces[0], _mm_cvtsi32_si128((int)remainder));
    for (; end - data >= (ptrdiff_t)BLOCK; data += BLOCK)
        for (int i = 0; i < LANES; i++)
            pieces[i] = _mm_xor_si128(move_128(pieces[i], powers), load_128(data + i * (int)sizeof *pieces));
    __m128i all = pieces[0];
    powers = powers_128(by_128_bits);
    for (int i = 1; i < LANES; i++) all = _mm_xor_si128(move_128(all, powers), pieces[i]);
    for (; end - data >= (ptrdiff_t)sizeof all; data += sizeof all) all = _mm_xor_si128(move_128(all, powers), load_128(data));
    return reduce(all, data, (size_t)(end - data));
}

WIDE static inline __m512i move_512(__m512i piece, __m512i powers, __m512i next) {
    /* 0x96: the exclusive or of all three. */
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(piece, powers, 0x00),
                                     _mm512_clmulepi64_epi128(piece, powers, 0x11), next, 0x96);
}

WIDE static inline __m512i powers_512(struct powers powers) { return _mm512_broadcast_i64x2(powers_128(powers)); }

/* The four quarters of a block, moved onto its last one. */
WIDE static inline __m128i together(__m512i block) {
    __m512i by_quarter = _mm512_set_epi64(0, 0, (int64_t)by_128_bits.high, (int64_t)by_128_bits.low,
                                          (int64_t)by_256_bits.high, (int64_t)by_256_bits.low,
                                          (int64_t)by_384_bits.high, (int64_t)by_384_bits.low);
    __m512i moved = move_512(block, by_quarter, _mm512_maskz_mov_epi64(0xC0, block));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64(moved, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti64x2_epi64(half, 1));
}

WIDE static uint32_t fold_wide(uint32_t remainder, const uint8_t *data, size_t size, bool blank) {
    const uint8_t *end = data + size;
    __m512i by_block = powers_512(by_512_bits), all = _mm512_maskz_loadu_epi32(blank ? 0x7FFF : 0xFFFF, data);
    all = _mm512_xor_si512(all, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)remainder)));
    data += BLOCK;
    if (size >= 2 * LANES * BLOCK) {
        __m512i by_lanes = powers_512(by_2048_bits), lanes[LANES] = {all};
        for (int i = 1; i < LANES; i++, data += BLOCK) lanes[i] = _mm512_loadu_si512(data);
        for (; data + LANES * BLOCK <= end; data += LANES * BLOCK)
            for (int i = 0; i < LANES; i++) lanes[i] = move_512(lanes[i], by_lanes, _mm512_loadu_si512(data + i * (int)BLOCK));
        all = lanes[0];
        for (int i = 1; i < LANES; i++) all = move_512(all, by_block, lanes[i]);
    }
    for (; end - data >= (ptrdiff_t)BLOCK; data += BLOCK) all = move_512(all, by_block, _mm512_loadu_si512(data));
    __m128i last = together(all), powers = powers_128(by_128_bits);
    for (; end - data >= (ptrdiff_t)sizeof last; data += sizeof last)
        last = _mm_xor_si128(move_128(last, powers), load_128(data));
    _mm256_zeroupper(); /* older vector instructions, wherever they come next, stall while the wide registers are in use */
    return reduce(last, data, (size_t)(end - data));
}

static folding *best_folding(void) {
    by_2048_bits = forward(2048);
    by_512_bits = forward(512);
    by_384_bits = forward(384);
    by_256_bits = forward(256);
    by_128_bits = forward(128);
    if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return fold_portable;
    if (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return fold_wide;
    return fold_narrow;
}
#else
static folding *best_folding(void) { return fold_portable; }
#endif

/* tables[k][b]: what byte b leaves in the remainder after k further zero bytes. */
__attribute__((constructor)) static void prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t remainder = byte;
        for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = remainder;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
    fold = best_folding();
}

uint32_t tb_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    return ~(size < BLOCK ? by_tables(~crc, data, size) : fold(~crc, data, size, false));
}

uint32_t tb_datagram_crc32(const uint8_t *datagram, size_t size) { return ~fold(~0u, datagram, size, true); }
