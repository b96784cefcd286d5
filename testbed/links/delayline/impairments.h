/* What chance does to a frame. Every frame draws from every stream, whatever the settings, so that the n-th frame of
 * a direction meets the same fate however the others fare. */
#ifndef DELAYLINE_IMPAIRMENTS_H
#define DELAYLINE_IMPAIRMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "chance.h"
#include "settings.h"

struct impairments {
    struct chance streams[CHANCE_STREAMS];
    bool in_burst;
};

struct fate {
    bool lost, duplicated, corrupted;
    int64_t jitter_ns;    /* to add to the delay */
    uint64_t corrupt_bit; /* modulo the frame's bits */
};

void impairments_seed(struct impairments *impairments, int64_t seed);
struct fate impairments_next(struct impairments *impairments, const struct settings *settings);

#endif
