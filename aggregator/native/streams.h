/* The way from an edge to its hosts: aggregator/results.py says what it does, and does the same in Python. */
#ifndef TESTBED_STREAMS_H
#define TESTBED_STREAMS_H

#include <stdbool.h>

#include "receive.h"

#define TB_RETRY_NS INT64_C(1000000) /* how long a full socket buffer is left alone */

/* What one host is sent. */
struct tb_stream {
    int64_t last_ns; /* when something was last sent */
    int64_t beat_ns; /* when the next heartbeat is due */
    double whole_ns; /* when the host's budget of requests is whole again */
    uint32_t address; /* of the host, in network byte order */
    uint32_t next;    /* number of the next packet that is queued */
    uint32_t unsent;  /* the first number that has not been sent */
    uint32_t trailing; /* the oldest number that is still in the ring */
    uint32_t epoch;    /* of the last packet */
    uint32_t round;
};

/* A ring of datagrams: `waiting` of them from `head` on are to be sent, and `held` before `head` have been sent and are
 * kept, the oldest first. */
struct tb_results {
    uint8_t *rows;
    uint64_t stride;
    uint32_t *sizes;  /* by row */
    uint32_t *shards; /* by row */
    int64_t *sent_ns; /* by row, when it was sent */
    int64_t *asked_ns; /* by row, when it was last put in line to be sent again */
    uint32_t *row_of; /* by shard and number modulo `index`: the row that the number was given to last */
    struct tb_stream *streams; /* by shard */
    double ns_per_byte;
    double ahead_ns;
    double line_free_ns;
    int64_t retry_ns;
    int64_t window_ns; /* how long a row is held */
    int64_t heartbeat_ns;
    uint32_t ring;  /* rows: `most_waiting` and `most_held` */
    uint32_t index; /* at least as much; a power of two, so that numbers modulo it wrap as they do themselves */
    uint32_t most_waiting;
    uint32_t most_held;
    uint32_t head;
    uint32_t waiting;
    uint32_t held;
    int32_t fd;
    uint32_t island_id;
    uint32_t number_format;
    uint32_t stream; /* the id of this numbering */
    const uint8_t *key; /* of the tags; NULL: there are none */
};

uint32_t tb_room(const struct tb_results *results);
uint32_t tb_free_row(const struct tb_results *results);
uint8_t *tb_row_at(const struct tb_results *results, uint32_t row);

/* Queue a contribution as it came, flagged. There must be room. */
void tb_add_bypassed(struct tb_results *results, const uint8_t *datagram, size_t size, uint32_t shard);

/* Queue a result, row i of `headers`, whose sum is in the free row already. */
void tb_add_result(struct tb_results *results, const struct tb_headers *headers, size_t i);

/* Forget what has been held for longer than the window. */
void tb_release_old(struct tb_results *results, int64_t now_ns);

/* Fill in the trailing edge, the tag and the checksum of a row that is about to be sent. */
void tb_seal_row(const struct tb_results *results, uint32_t row);

/* Fill in the tag, if there is a key, and the checksum. */
void tb_seal(const uint8_t *key, uint8_t *datagram, size_t size);

/* When the line is free at the earliest for one more datagram, whatever it is. */
double tb_next_send_ns(const struct tb_results *results);

/* When the line is free again if a datagram of `size` bytes goes out, of a line that is busy until `free_ns`. */
double tb_line_after(const struct tb_results *results, double free_ns, size_t size, int64_t now_ns);

/* Send what waits and may go now. Returns 0, or minus an errno. */
int tb_send_due(struct tb_results *results, int64_t now_ns);

#endif
