/* An example engine in C: the rules of engine `native`, and a sum of its own, as a device with 16-bit adders would make it. */
#include "../../../aggregator/engines/native/sum.h"

static void add_halves(int32_t *total, const int32_t *left, const int32_t *right, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t a = (uint32_t)left[i], b = (uint32_t)right[i];
        uint32_t low = (a & 0xFFFFu) + (b & 0xFFFFu);
        uint32_t high = (a >> 16) + (b >> 16) + (low >> 16);
        total[i] = (int32_t)(high << 16 | (low & 0xFFFFu));
    }
}

static void add_floats(int32_t *total, const int32_t *left, const int32_t *right, size_t count) {
    for (size_t i = 0; i < count; i++) {
        union { int32_t bits; float value; } a = {left[i]}, b = {right[i]};
        a.value += b.value;
        total[i] = a.bits;
    }
}

tb_sum *tb_best_sum(bool floats) { return floats ? add_floats : add_halves; }
