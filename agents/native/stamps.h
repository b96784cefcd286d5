/* When datagrams arrived. The kernel stamps them with the wall clock, which may be stepped at any moment; everything here
 * is on CLOCK_MONOTONIC, so both clocks are read with every batch, and a stamp must be plausible. */
#ifndef TESTBED_STAMPS_H
#define TESTBED_STAMPS_H

#include <stdint.h>
#include <sys/socket.h>

struct tb_stamps {
    int64_t now_ns;    /* monotonic: when the present batch was read */
    int64_t offset_ns; /* what the wall clock was ahead of that */
    int64_t empty_ns;  /* monotonic: what is read now was not at the socket yet */
};

int64_t tb_monotonic_ns(void);

/* Read both clocks. */
void tb_read_clocks(struct tb_stamps *stamps);

/* When a datagram of the present batch arrived, by the kernel's stamp; without a plausible one: when it was read. */
int64_t tb_arrival_ns(const struct tb_stamps *stamps, struct msghdr *message);

#endif
