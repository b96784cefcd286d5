/* One end of a link as a packet socket: frames come in through a ring shared with the kernel and may stay there. */
#ifndef DELAYLINE_PORT_H
#define DELAYLINE_PORT_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "held.h"

#define PORT_BATCH 64

struct port {
    char name[IFNAMSIZ];
    int fd;
    uint8_t *ring;
    size_t ring_bytes;
    uint32_t slots;
    uint32_t next; /* the slot that the kernel fills next */
    bool *holds;   /* per slot: read and not given back */
};

/* A frame as it was read. */
struct arrival {
    int64_t stamp_ns; /* CLOCK_REALTIME */
    uint8_t *data;
    uint32_t bytes;
    uint32_t slot;
    bool whole; /* false: it did not fit its slot */
};

/* Open the interface of this network namespace, with room for at least `slots` frames. On failure false and one line
 * in `error`. Brings the interface up. */
bool port_open(struct port *port, const char *interface, uint32_t slots, char *error, size_t error_size);
void port_close(struct port *port);

/* Set the interface administratively up or down; down takes carrier from the other end. */
bool port_set_up(struct port *port, bool up);

/* The next frame, if there is one; its slot stays taken until it is given back. */
bool port_read(struct port *port, struct arrival *arrival);
void port_give_back(struct port *port, uint32_t slot);

/* Frames that found the ring full since the last call. */
uint64_t port_take_overflows(struct port *port);

/* Send the first `count` <= PORT_BATCH frames of a queue. Returns how many went, or -1 with errno for the first. */
int port_send(struct port *port, const struct held_queue *queue, unsigned count);

#endif
