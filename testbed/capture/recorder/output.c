#include "output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PACKET_BLOCK 6U
#define OPTION_FLAGS 2U
#define INBOUND 1U
#define OUTBOUND 2U

struct block_head {
    uint32_t type, total_bytes, interface, time_high, time_low, captured_bytes, frame_bytes;
};

struct block_tail {
    uint16_t flags_option, flags_bytes;
    uint32_t flags;
    uint16_t end_option, end_bytes;
    uint32_t total_bytes;
};

bool output_open(struct output *output, int fd)
{
    *output = (struct output){.fd = fd, .buffer = malloc(OUTPUT_BUFFER_BYTES)};
    return output->buffer != NULL;
}

void output_frame(struct output *output, uint32_t interface, const struct tpacket3_hdr *frame)
{
    uint32_t padded = (frame->tp_snaplen + 3U) & ~3U;
    uint32_t total = (uint32_t)sizeof(struct block_head) + padded + (uint32_t)sizeof(struct block_tail);
    if (output->used + total > OUTPUT_BUFFER_BYTES)
        output_flush(output);
    uint64_t time_ns = (uint64_t)frame->tp_sec * 1000000000U + frame->tp_nsec;
    const struct sockaddr_ll *address =
        (const struct sockaddr_ll *)(const void *)((const uint8_t *)frame + TPACKET_ALIGN((int)sizeof *frame));
    struct block_head head = {.type = PACKET_BLOCK,
                              .total_bytes = total,
                              .interface = interface,
                              .time_high = (uint32_t)(time_ns >> 32),
                              .time_low = (uint32_t)time_ns,
                              .captured_bytes = frame->tp_snaplen,
                              .frame_bytes = frame->tp_len};
    struct block_tail tail = {.flags_option = OPTION_FLAGS,
                              .flags_bytes = sizeof tail.flags,
                              .flags = address->sll_pkttype == PACKET_OUTGOING ? OUTBOUND : INBOUND,
                              .total_bytes = total};
    uint8_t *to = output->buffer + output->used;
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, (const uint8_t *)frame + frame->tp_mac, frame->tp_snaplen);
    memset(to + sizeof head + frame->tp_snaplen, 0, padded - frame->tp_snaplen);
    memcpy(to + sizeof head + padded, &tail, sizeof tail);
    output->used += total;
    output->held++;
}

void output_flush(struct output *output)
{
    off_t whole = lseek(output->fd, 0, SEEK_CUR);
    size_t done = 0;
    while (done < output->used && !output->failed) {
        ssize_t written = write(output->fd, output->buffer + done, output->used - done);
        if (written >= 0)
            done += (size_t)written;
        else
            output->failed = errno != EINTR;
    }
    if (output->failed) {
        /* No block is left cut: what follows could not be read. */
        if (ftruncate(output->fd, whole) == 0)
            (void)lseek(output->fd, whole, SEEK_SET);
        output->unwritten += output->held;
    }
    output->used = 0;
    output->held = 0;
}
