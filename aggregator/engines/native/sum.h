/* Element-wise sums of 32-bit values, with the widest vectors that the CPU has. */
#ifndef TESTBED_SUM_H
#define TESTBED_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* total[i] = left[i] + right[i]; `total` may be `left`. Integers wrap. */
typedef void tb_sum(int32_t *total, const int32_t *left, const int32_t *right, size_t count);

tb_sum *tb_best_sum(bool floats);

#endif
