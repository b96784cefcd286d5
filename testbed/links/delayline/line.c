#include "line.h"

#include <stdlib.h>

#include "clock.h"

#define SMALLEST_FRAME 60

static size_t capacity_for(int64_t queue_bytes)
{
    size_t wanted = (size_t)(queue_bytes / SMALLEST_FRAME) + 2, capacity = 16;
    while (capacity < wanted)
        capacity *= 2;
    return capacity;
}

static bool grow(struct line *line, size_t capacity)
{
    struct waiting *larger = malloc(capacity * sizeof *larger);
    if (!larger)
        return false;
    for (size_t i = 0; i < line->count; i++)
        larger[i] = line->waiting[(line->first + i) & (line->capacity - 1)];
    free(line->waiting);
    line->waiting = larger;
    line->capacity = capacity;
    line->first = 0;
    return true;
}

bool line_configure(struct line *line, int64_t rate_bps, int64_t queue_bytes)
{
    size_t capacity = capacity_for(queue_bytes);
    if (capacity > line->capacity && !grow(line, capacity))
        return false;
    if (rate_bps != line->rate_bps)
        line->remainder = 0;
    line->rate_bps = rate_bps;
    line->queue_bytes = queue_bytes;
    return true;
}

void line_free(struct line *line)
{
    free(line->waiting);
    line->waiting = NULL;
    line->capacity = line->first = line->count = 0;
}

static void begin_serialising(struct line *line, int64_t now_ns)
{
    while (line->count > 0) {
        const struct waiting *next = &line->waiting[line->first & (line->capacity - 1)];
        if (next->start_ns > now_ns)
            return;
        line->queued_bytes -= next->bytes;
        line->first++;
        line->count--;
    }
}

bool line_offer(struct line *line, int64_t arrival_ns, uint32_t bytes, int64_t *finish_ns)
{
    begin_serialising(line, arrival_ns);
    int64_t start = arrival_ns;
    if (line->finish_ns > arrival_ns) {
        if (line->queued_bytes + bytes > line->queue_bytes || line->count == line->capacity)
            return false;
        start = line->finish_ns;
        line->waiting[(line->first + line->count) & (line->capacity - 1)] = (struct waiting){start, bytes};
        line->count++;
        line->queued_bytes += bytes;
        if (line->queued_bytes > line->high_water_bytes)
            line->high_water_bytes = line->queued_bytes;
    } else {
        line->remainder = 0;
    }
    int64_t scaled = (int64_t)bytes * 8 * NS_PER_S + line->remainder;
    line->finish_ns = start + scaled / line->rate_bps;
    line->remainder = scaled % line->rate_bps;
    *finish_ns = line->finish_ns;
    return true;
}
