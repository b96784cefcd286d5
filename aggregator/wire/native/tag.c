#include "tag.h"

#include <string.h>

#define HEADER_BYTES 64u
#define CHECKSUM_AT 60u

struct state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t load64(const uint8_t *at) {
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--) word = word << 8 | at[i];
    return word;
}

static uint64_t rotated(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline void mix(struct state *state, int rounds) {
    for (int i = 0; i < rounds; i++) {
        state->v0 += state->v1;
        state->v1 = rotated(state->v1, 13) ^ state->v0;
        state->v0 = rotated(state->v0, 32);
        state->v2 += state->v3;
        state->v3 = rotated(state->v3, 16) ^ state->v2;
        state->v0 += state->v3;
        state->v3 = rotated(state->v3, 21) ^ state->v0;
        state->v2 += state->v1;
        state->v1 = rotated(state->v1, 17) ^ state->v2;
        state->v2 = rotated(state->v2, 32);
    }
}

static inline void absorb(struct state *state, uint64_t word) {
    state->v3 ^= word;
    mix(state, 2);
    state->v0 ^= word;
}

uint64_t tb_tag(const uint8_t *key, const uint8_t *datagram, size_t size) {
    uint64_t k0 = load64(key), k1 = load64(key + 8);
    struct state state = {
        k0 ^ UINT64_C(0x736f6d6570736575),
        k1 ^ UINT64_C(0x646f72616e646f6d),
        k0 ^ UINT64_C(0x6c7967656e657261),
        k1 ^ UINT64_C(0x7465646279746573),
    };
    uint8_t header[HEADER_BYTES];
    memcpy(header, datagram, HEADER_BYTES);
    memset(header + TB_TAG_AT, 0, 8);
    memset(header + CHECKSUM_AT, 0, 4);
    for (size_t at = 0; at < HEADER_BYTES; at += 8) absorb(&state, load64(header + at));
    size_t at = HEADER_BYTES;
    for (; at + 8 <= size; at += 8) absorb(&state, load64(datagram + at));
    uint8_t last[8] = {0};
    memcpy(last, datagram + at, size - at);
    absorb(&state, load64(last) | (uint64_t)size << 56);
    state.v2 ^= 0xff;
    mix(&state, 4);
    return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}
