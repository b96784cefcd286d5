/* Seeded chance. Each kind of impairment draws from a stream of its own, so that switching one on leaves the pattern
 * of the others as it was. Draw n of a stream is splitmix64's mixing function of (stream start + n * step). */
#ifndef DELAYLINE_CHANCE_H
#define DELAYLINE_CHANCE_H

#include <stdbool.h>
#include <stdint.h>

enum chance_stream { CHANCE_LOSS, CHANCE_BURST, CHANCE_JITTER, CHANCE_DUPLICATE, CHANCE_CORRUPT, CHANCE_STREAMS };

struct chance {
    uint64_t state;
};

#define CHANCE_STEP UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t chance_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline struct chance chance_start(uint64_t seed, enum chance_stream stream)
{
    return (struct chance){chance_mix(seed + ((uint64_t)stream + 1) * CHANCE_STEP)};
}

static inline uint64_t chance_next(struct chance *chance)
{
    chance->state += CHANCE_STEP;
    return chance_mix(chance->state);
}

/* Uniform in [0, 1), 53 bits. */
static inline double chance_uniform(struct chance *chance)
{
    return (double)(chance_next(chance) >> 11) * 0x1p-53;
}

/* True with the probability; 0 is never and 1 always. Draws once in any case. */
static inline bool chance_happens(struct chance *chance, double probability)
{
    return chance_uniform(chance) < probability;
}

#endif
