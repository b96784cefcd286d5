#include "control.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum value_kind { VALUE_NAME, VALUE_INTEGER, VALUE_PROBABILITY };

struct parameter {
    const char *name;
    enum value_kind kind;
    size_t offset; /* in struct command */
    int64_t least, most;
    unsigned setting; /* bit of settings.given, or 0: then the parameter must be there */
};

#define PLACE(member) offsetof(struct command, member)
#define SETTING(bit, member, least, most) \
    {#member, VALUE_INTEGER, PLACE(settings.member), least, most, SETTING_##bit}
#define CHANCE(bit, member) {#member, VALUE_PROBABILITY, PLACE(settings.member), 0, 1, SETTING_##bit}
#define COUNT(member, least, most) {#member, VALUE_INTEGER, PLACE(member), least, most, 0}

#define LEAST_SLOTS 256 /* more than direction.c keeps free */
#define LEAST_ARENA_BYTES 65536
#define LONGEST_NS INT64_C(3600000000000)
#define MOST_BYTES (INT64_C(1) << 36)

static const struct parameter link_parameters[] = {
    {"a", VALUE_NAME, PLACE(a), 0, 0, 0},
    {"b", VALUE_NAME, PLACE(b), 0, 0, 0},
    COUNT(slots_forward, LEAST_SLOTS, 1 << 22),
    COUNT(arena_forward, LEAST_ARENA_BYTES, MOST_BYTES),
    COUNT(slots_backward, LEAST_SLOTS, 1 << 22),
    COUNT(arena_backward, LEAST_ARENA_BYTES, MOST_BYTES),
    {0},
};

static const struct parameter set_parameters[] = {
    COUNT(direction, 0, 1 << 20),
    SETTING(DELAY_NS, delay_ns, 0, LONGEST_NS),
    SETTING(RATE_BPS, rate_bps, 1, INT64_C(1000000000000)),
    SETTING(QUEUE_BYTES, queue_bytes, 0, MOST_BYTES),
    SETTING(SEED, seed, INT64_MIN, INT64_MAX),
    CHANCE(LOSS, loss),
    CHANCE(BURST_ENTER, burst_enter),
    CHANCE(BURST_LEAVE, burst_leave),
    CHANCE(BURST_LOSS, burst_loss),
    CHANCE(BURST_LOSS_OUTSIDE, burst_loss_outside),
    SETTING(JITTER_NS, jitter_ns, 0, LONGEST_NS),
    SETTING(REORDER, reorder, 0, 1),
    CHANCE(DUPLICATE, duplicate),
    CHANCE(CORRUPT, corrupt),
    {0},
};

static const struct parameter which_link[] = {COUNT(link, 0, 1 << 19), {0}};
static const struct parameter no_parameters[] = {{0}};

static const struct {
    const char *word;
    enum command_kind kind;
    const struct parameter *parameters;
} commands[] = {
    {"link", COMMAND_LINK, link_parameters},
    {"set", COMMAND_SET, set_parameters},
    {"up", COMMAND_UP, which_link},
    {"down", COMMAND_DOWN, which_link},
    {"start", COMMAND_START, no_parameters},
    {"counters", COMMAND_COUNTERS, no_parameters},
    {"stop", COMMAND_STOP, no_parameters},
};

static bool parse_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < least || number > most)
        return false;
    *value = number;
    return true;
}

static bool parse_probability(const char *text, double *value)
{
    if (text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    double number = strtod(text, &end);
    if (*end != '\0' || !isfinite(number) || number < 0 || number > 1)
        return false;
    *value = number;
    return true;
}

static bool parse_value(const struct parameter *parameter, const char *text, struct command *command)
{
    char *place = (char *)command + parameter->offset;
    switch (parameter->kind) {
    case VALUE_NAME:
        if (text[0] == '\0' || strlen(text) >= IFNAMSIZ)
            return false;
        memcpy(place, text, strlen(text) + 1);
        return true;
    case VALUE_INTEGER:
        return parse_integer(text, parameter->least, parameter->most, (int64_t *)(void *)place);
    case VALUE_PROBABILITY:
        return parse_probability(text, (double *)(void *)place);
    }
    return false;
}

static bool fail(char *error, size_t error_size, const char *what, const char *word)
{
    snprintf(error, error_size, "%s: %.100s", what, word);
    return false;
}

/* One "name=value"; `seen` has a bit for each parameter of the command. */
static bool parse_parameter(char *word, const struct parameter *parameters, unsigned *seen, struct command *command,
                            char *error, size_t error_size)
{
    char *equals = strchr(word, '=');
    if (!equals)
        return fail(error, error_size, "not name=value", word);
    *equals = '\0';
    for (unsigned i = 0; parameters[i].name; i++) {
        if (strcmp(parameters[i].name, word) != 0)
            continue;
        if (*seen & 1U << i)
            return fail(error, error_size, "named twice", word);
        if (!parse_value(&parameters[i], equals + 1, command))
            return fail(error, error_size, "bad value for", word);
        *seen |= 1U << i;
        command->settings.given |= parameters[i].setting;
        return true;
    }
    return fail(error, error_size, "unknown parameter", word);
}

bool command_parse(const char *text, size_t length, struct command *command, char *error, size_t error_size)
{
    char copy[COMMAND_BYTES];
    if (length >= sizeof copy || memchr(text, '\0', length))
        return fail(error, error_size, "not a command", "too long, or not text");
    memcpy(copy, text, length);
    copy[length] = '\0';

    char *rest;
    const char *word = strtok_r(copy, " ", &rest);
    if (!word)
        return fail(error, error_size, "not a command", "empty");
    *command = (struct command){0};
    const struct parameter *parameters = NULL;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].word, word) == 0) {
            command->kind = commands[i].kind;
            parameters = commands[i].parameters;
        }
    }
    if (!parameters)
        return fail(error, error_size, "unknown command", word);

    unsigned seen = 0;
    for (char *next = strtok_r(NULL, " ", &rest); next; next = strtok_r(NULL, " ", &rest))
        if (!parse_parameter(next, parameters, &seen, command, error, error_size))
            return false;
    for (unsigned i = 0; parameters[i].name; i++)
        if (!parameters[i].setting && !(seen & 1U << i))
            return fail(error, error_size, "missing", parameters[i].name);
    return true;
}
