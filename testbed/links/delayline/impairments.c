#include "impairments.h"

void impairments_seed(struct impairments *impairments, int64_t seed)
{
    for (int stream = 0; stream < CHANCE_STREAMS; stream++)
        impairments->streams[stream] = chance_start((uint64_t)seed, (enum chance_stream)stream);
    impairments->in_burst = false;
}

/* Gilbert-Elliott: the state moves first, then the frame is lost with the probability of the new state. */
static bool lost_in_burst(struct impairments *impairments, const struct settings *settings)
{
    struct chance *chance = &impairments->streams[CHANCE_BURST];
    double leave_or_enter = impairments->in_burst ? settings->burst_leave : settings->burst_enter;
    if (chance_happens(chance, leave_or_enter))
        impairments->in_burst = !impairments->in_burst;
    return chance_happens(chance, impairments->in_burst ? settings->burst_loss : settings->burst_loss_outside);
}

struct fate impairments_next(struct impairments *impairments, const struct settings *settings)
{
    struct chance *streams = impairments->streams;
    struct fate fate = {0};
    fate.lost = chance_happens(&streams[CHANCE_LOSS], settings->loss);
    fate.lost |= lost_in_burst(impairments, settings);
    double where = 2 * chance_uniform(&streams[CHANCE_JITTER]) - 1;
    fate.jitter_ns = (int64_t)((double)settings->jitter_ns * where);
    fate.duplicated = chance_happens(&streams[CHANCE_DUPLICATE], settings->duplicate);
    fate.corrupted = chance_happens(&streams[CHANCE_CORRUPT], settings->corrupt);
    fate.corrupt_bit = chance_next(&streams[CHANCE_CORRUPT]);
    return fate;
}
