/* A serial line: frames wait in a bounded queue while earlier ones are serialised at the line's rate. Pure
 * computation on arrival times; reads no clock. */
#ifndef DELAYLINE_LINE_H
#define DELAYLINE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A frame that has not begun to be serialised. */
struct waiting {
    int64_t start_ns;
    uint32_t bytes;
};

struct line {
    int64_t rate_bps;
    int64_t queue_bytes;
    int64_t finish_ns;    /* when the last accepted frame has left the sender */
    int64_t remainder;    /* of the division that gave finish_ns, so that rounding does not add up */
    int64_t queued_bytes; /* of the frames in `waiting` */
    int64_t high_water_bytes;
    struct waiting *waiting; /* circular; `capacity` is a power of two */
    size_t capacity, first, count;
};

/* Rate > 0, queue >= 0. Also for a line in use: accepted frames keep their times. False: out of memory, unchanged. */
bool line_configure(struct line *line, int64_t rate_bps, int64_t queue_bytes);
void line_free(struct line *line);

/* Offer a frame; arrivals must not go back in time. True: it has left the sender at *finish_ns. False: queue full. */
bool line_offer(struct line *line, int64_t arrival_ns, uint32_t bytes, int64_t *finish_ns);

#endif
