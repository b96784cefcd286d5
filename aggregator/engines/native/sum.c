#include "sum.h"

#include <string.h>

#define BLOCK_VALUES 256u
#define LINE_VALUES 16u
#define PAGE_VALUES 1024u

/* The sum so far has often left the cache, and the processor's own look-ahead stops at the end of each page. So each
 * block of a long sum is asked for while the one before it is added. Behind a row lies as a rule the sum that is added to
 * next; where nothing lies, asking does no harm. */
static inline void fetch_next_block(const int32_t *sum) {
    for (uintptr_t i = BLOCK_VALUES; i < 2 * BLOCK_VALUES; i += LINE_VALUES)
        __builtin_prefetch((const void *)((uintptr_t)sum + i * sizeof *sum));
}

static inline size_t block_end(size_t first, size_t count) {
    return count - first < BLOCK_VALUES ? count : first + BLOCK_VALUES;
}

/* One loop, compiled for several instruction sets: the compiler vectorises it. Integers are added as unsigned numbers,
 * whose overflow is defined. Floats travel in the same arrays, bit for bit. */
#define DEFINE_SUMS(suffix, attributes)                                                                     \
    attributes static void add_integers_##suffix(int32_t *total, const int32_t *left, const int32_t *right, \
                                                 size_t count) {                                            \
        for (size_t first = 0; first < count; first += BLOCK_VALUES) {                                      \
            size_t end = block_end(first, count);                                                           \
            if (count > PAGE_VALUES) fetch_next_block(left + first);                                        \
            _Pragma("GCC ivdep") for (size_t i = first; i < end; i++)                                       \
                total[i] = (int32_t)((uint32_t)left[i] + (uint32_t)right[i]);                               \
        }                                                                                                   \
    }                                                                                                       \
    attributes static void add_floats_##suffix(int32_t *total, const int32_t *left, const int32_t *right,   \
                                               size_t count) {                                              \
        for (size_t i = 0; i < count; i++) {                                                                \
            float a, b;                                                                                     \
            memcpy(&a, &left[i], sizeof a);                                                                 \
            memcpy(&b, &right[i], sizeof b);                                                                \
            a += b;                                                                                         \
            memcpy(&total[i], &a, sizeof a);                                                                \
        }                                                                                                   \
    }

DEFINE_SUMS(portable, )

#if defined(__x86_64__) && defined(__GNUC__)
DEFINE_SUMS(avx2, __attribute__((target("avx2"))))
DEFINE_SUMS(avx512, __attribute__((target("avx512f,prefer-vector-width=512"))))
#endif

tb_sum *tb_best_sum(bool floats) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f")) return floats ? add_floats_avx512 : add_integers_avx512;
    if (__builtin_cpu_supports("avx2")) return floats ? add_floats_avx2 : add_integers_avx2;
#endif
    return floats ? add_floats_portable : add_integers_portable;
}
