/* What can be asked of one direction. `given` says which members mean something; unnamed ones stay as they are. */
#ifndef DELAYLINE_SETTINGS_H
#define DELAYLINE_SETTINGS_H

#include <stdint.h>

enum setting {
    SETTING_DELAY_NS = 1 << 0,
    SETTING_RATE_BPS = 1 << 1,
    SETTING_QUEUE_BYTES = 1 << 2,
    SETTING_SEED = 1 << 3,
    SETTING_LOSS = 1 << 4,
    SETTING_BURST_ENTER = 1 << 5,
    SETTING_BURST_LEAVE = 1 << 6,
    SETTING_BURST_LOSS = 1 << 7,
    SETTING_BURST_LOSS_OUTSIDE = 1 << 8,
    SETTING_JITTER_NS = 1 << 9,
    SETTING_REORDER = 1 << 10,
    SETTING_DUPLICATE = 1 << 11,
    SETTING_CORRUPT = 1 << 12,
};

struct settings {
    unsigned given;
    int64_t delay_ns;          /* one way, after serialisation */
    int64_t rate_bps;
    int64_t queue_bytes;       /* waiting for serialisation */
    int64_t seed;              /* naming it starts all chance anew */
    double loss;               /* probability that a frame is lost */
    double burst_enter;        /* Gilbert-Elliott: probability, per frame, to enter a burst */
    double burst_leave;        /* ... and to leave it */
    double burst_loss;         /* loss within a burst */
    double burst_loss_outside; /* ... and between bursts */
    int64_t jitter_ns;         /* uniform between -jitter and +jitter, added to the delay */
    int64_t reorder;           /* 1: a frame with less jitter may overtake; 0: order is kept */
    double duplicate;
    double corrupt;            /* probability that one bit is flipped */
};

#endif
