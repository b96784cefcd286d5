/* A pcapng file that frames are appended to; whoever opened it has written its head. */
#ifndef TESTBED_CAPTURE_OUTPUT_H
#define TESTBED_CAPTURE_OUTPUT_H

#include <linux/if_packet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTPUT_BUFFER_BYTES (256U << 10)

struct output {
    int fd;
    uint8_t *buffer;
    size_t used;
    uint64_t held;      /* frames in the buffer */
    uint64_t unwritten; /* frames that were lost because the file could not be written */
    bool failed;
};

bool output_open(struct output *output, int fd);

/* Append a frame of an interface, as an enhanced packet block with its direction. */
void output_frame(struct output *output, uint32_t interface, const struct tpacket3_hdr *frame);

/* Write what is held back. If that fails once, the file stays as it was before, and nothing more is written. */
void output_flush(struct output *output);

#endif
