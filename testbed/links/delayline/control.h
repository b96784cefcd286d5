/* The control protocol, one command per message, in text:
 *
 *     link a=IF b=IF slots_forward=N arena_forward=BYTES slots_backward=N arena_backward=BYTES
 *     set direction=N [delay_ns=N] [rate_bps=N] [queue_bytes=N] [seed=N] [loss=P] ...
 *     up link=N / down link=N / start / counters / stop
 *
 * Links count from 0; link n has direction 2n (from a to b) and 2n + 1. Each command is answered by "ok ..." or
 * "error ...". Pure parsing, of text that is not trusted. */
#ifndef DELAYLINE_CONTROL_H
#define DELAYLINE_CONTROL_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "settings.h"

#define COMMAND_BYTES 2048

enum command_kind {
    COMMAND_LINK,
    COMMAND_SET,
    COMMAND_UP,
    COMMAND_DOWN,
    COMMAND_START,
    COMMAND_COUNTERS,
    COMMAND_STOP,
};

struct command {
    enum command_kind kind;
    char a[IFNAMSIZ], b[IFNAMSIZ];
    int64_t slots_forward, arena_forward, slots_backward, arena_backward;
    int64_t direction, link;
    struct settings settings;
};

/* False: not a command; one line about it in `error`. */
bool command_parse(const char *text, size_t length, struct command *command, char *error, size_t error_size);

#endif
