/* A histogram of nanoseconds with eight buckets per power of two: any quantile to within an eighth. */
#ifndef DELAYLINE_HISTOGRAM_H
#define DELAYLINE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS 320 /* up to 2^41 ns, half an hour; more counts as that */

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_bucket(int64_t ns)
{
    if (ns < 8)
        return ns < 0 ? 0 : (unsigned)ns;
    unsigned exponent = 63U - (unsigned)__builtin_clzll((unsigned long long)ns);
    unsigned bucket = (exponent - 2) * 8 + (unsigned)((ns >> (exponent - 3)) & 7);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(struct histogram *histogram, int64_t ns, uint64_t times)
{
    histogram->counts[histogram_bucket(ns)] += times;
}

#endif
