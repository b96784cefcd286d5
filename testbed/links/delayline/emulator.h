/* All links of a run, and the commands that act on them. */
#ifndef DELAYLINE_EMULATOR_H
#define DELAYLINE_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>

#include "worker.h"

#define WORKERS 2

struct link;

struct emulator {
    int control;
    struct link **links;
    size_t count;
    struct worker workers[WORKERS]; /* links take turns over them */
    bool started;
};

bool emulator_init(struct emulator *emulator, int control);

/* Say that the namespace is there, and interfaces can be put into it. */
void emulator_greet(const struct emulator *emulator);

/* Carry a command out and answer it. False: it was the command to stop. */
bool emulator_obey(struct emulator *emulator, const char *text, size_t length);

/* Stop the threads, remove the interfaces, and answer. */
void emulator_stop(struct emulator *emulator);

#endif
