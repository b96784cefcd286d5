#include <string.h>

#include "check.h"
#include "control.h"

static char error[64]; /* short: a long word must not overflow it */

static bool parse(const char *text, struct command *command)
{
    return command_parse(text, strlen(text), command, error, sizeof error);
}

static void commands_are_understood(void)
{
    struct command command;
    CHECK(parse("link a=l0a b=l0b slots_forward=300 arena_forward=65536 slots_backward=301 arena_backward=65537",
                &command));
    CHECK(command.kind == COMMAND_LINK && strcmp(command.a, "l0a") == 0 && strcmp(command.b, "l0b") == 0);
    CHECK(command.slots_forward == 300 && command.arena_backward == 65537);
    CHECK(parse("set direction=3 loss=0.25 seed=-7  delay_ns=0", &command));
    CHECK(command.kind == COMMAND_SET && command.direction == 3);
    CHECK(command.settings.given == (SETTING_LOSS | SETTING_SEED | SETTING_DELAY_NS));
    CHECK(command.settings.loss == 0.25 && command.settings.seed == -7 && command.settings.delay_ns == 0);
    CHECK(parse("set direction=0 loss=1e-300", &command) && command.settings.loss == 1e-300);
    CHECK(parse("set direction=0", &command) && command.settings.given == 0);
    CHECK(parse("down link=5", &command) && command.kind == COMMAND_DOWN && command.link == 5);
    CHECK(parse("up link=0", &command) && command.kind == COMMAND_UP);
    CHECK(parse("start", &command) && command.kind == COMMAND_START);
    CHECK(parse("counters", &command) && command.kind == COMMAND_COUNTERS);
    CHECK(parse("stop", &command) && command.kind == COMMAND_STOP);
}

static void nonsense_is_refused(void)
{
    static const char *const nonsense[] = {
        "", " ", "links", "set", "set direction", "set direction=", "set direction=x", "set direction=-1",
        "set direction=0 direction=1", "set direction=0x10", "set direction= 1", "set direction=1 rate_bps=0",
        "set direction=1 rate_bps=-5", "set direction=1 rate_bps=1e9", "set direction=1 rate_bps=99999999999999999999",
        "set direction=1 delay_ns=-1", "set direction=1 loss=1.0001", "set direction=1 loss=-0.1",
        "set direction=1 loss=nan", "set direction=1 loss=inf", "set direction=1 loss=", "set direction=1 loss=0.1x",
        "set direction=1 given=1", "set direction=1 jitter_ns=9999999999999999", "set direction=1 reorder=2",
        "set direction=1 =5", "set direction=1 loss", "start now=1", "stop \t", "up", "up link=99999999999",
        "link a=l0a b=l0b", "link a= b=l0b slots_forward=300 arena_forward=65536 slots_backward=300 arena_backward=65536",
        "link a=sixteen-letters- b=l0b slots_forward=300 arena_forward=65536 slots_backward=300 arena_backward=65536",
        "link a=l0a b=l0b slots_forward=0 arena_forward=65536 slots_backward=300 arena_backward=65536",
        "link a=l0a b=l0b slots_forward=300 arena_forward=0 slots_backward=300 arena_backward=65536",
        "direction=1 set",
        "thisisaverylongcommandthatnobodyhaseverheardofandthatdoesnotfitintothespaceforerrorsofthistestatall",
    };
    struct command command;
    for (size_t n = 0; n < sizeof nonsense / sizeof nonsense[0]; n++) {
        error[0] = '\0';
        if (parse(nonsense[n], &command))
            fprintf(stderr, "accepted: %s\n", nonsense[n]);
        CHECK(!parse(nonsense[n], &command));
        CHECK(error[0] != '\0');
    }
    CHECK(!command_parse("stop\0stop", 9, &command, error, sizeof error));
    static char long_text[COMMAND_BYTES + 100];
    memset(long_text, ' ', sizeof long_text);
    memcpy(long_text, "stop", 4);
    CHECK(!command_parse(long_text, sizeof long_text, &command, error, sizeof error));
    CHECK(!command_parse(long_text, COMMAND_BYTES, &command, error, sizeof error));
    CHECK(command_parse(long_text, COMMAND_BYTES - 1, &command, error, sizeof error));
}

/* Whatever comes: no read or write out of bounds (the sanitisers watch), and values within their limits. */
static void arbitrary_text_does_no_harm(void)
{
    static const char *const pieces[] = {
        "set", "link", "up", " ", " ", "=", "direction=1", "rate_bps=", "loss=", "0.5", "-", "1", "99999999999", "a=",
        "b=l0", "slots_forward=300", "seed=", "\x01", "\xff", "jitter_ns=5", "e", ".", "x",
    };
    uint64_t state = 42;
    int accepted = 0;
    for (int n = 0; n < 300000; n++) {
        char text[256];
        size_t length = 0;
        for (int piece = 0; piece < 12; piece++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const char *next = pieces[(state >> 33) % (sizeof pieces / sizeof pieces[0])];
            size_t size = strlen(next);
            memcpy(text + length, next, size);
            length += size;
            if ((state >> 20) % 5 == 0)
                break;
        }
        struct command command;
        if (command_parse(text, length, &command, error, sizeof error)) {
            accepted++;
            CHECK(command.settings.loss >= 0 && command.settings.loss <= 1);
            CHECK(command.kind != COMMAND_SET || command.direction >= 0);
        }
    }
    CHECK(accepted > 0);
}

int main(void)
{
    commands_are_understood();
    nonsense_is_refused();
    arbitrary_text_does_no_harm();
    return 0;
}
