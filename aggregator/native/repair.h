/* Sending again what hosts have missed: aggregator/repair.py says what it does, and does the same in Python. */
#ifndef TESTBED_REPAIR_H
#define TESTBED_REPAIR_H

#include "streams.h"

#define TB_REPAIR_QUEUE 256u

/* What happened to requests; the order is that of COUNTS in aggregator/repair.py. */
enum tb_repair_count {
    TB_NACKS,           /* requests that were taken */
    TB_NACKS_LIMITED,   /* requests beyond the host's budget */
    TB_REPAIRS,         /* packets sent again */
    TB_REPAIR_BYTES,    /* of their frames */
    TB_REPAIRS_REFUSED, /* numbers asked for too soon, or more than fit the queue */
    TB_GONE,            /* numbers asked for that are not held any more */
    TB_GONE_ANSWERS,    /* packets that say so */
    TB_HEARTBEATS,
    TB_REPAIR_COUNTS
};

struct tb_repairs {
    uint64_t *queue;  /* to be sent again, shard · 2^32 + number: a ring of TB_REPAIR_QUEUE */
    uint64_t *counts; /* by tb_repair_count */
    uint64_t *refused; /* by tb_refusal */
    double whole_ns;  /* when the repairs' share of the line is whole again */
    double share;
    int64_t interval_ns; /* between two repairs of one packet, and between two requests of one host */
    uint32_t requests_at_once;
    uint32_t job;
    uint32_t shards;
    uint32_t head;
    uint32_t waiting;
    int32_t fd; /* where requests come in */
};

/* Take up to TB_RECEIVE_BATCH requests. Returns 0, or minus an errno. */
int tb_take_requests(struct tb_repairs *repairs, struct tb_results *results, int64_t now_ns);

/* Send again what may go now, and heartbeats that are due. Returns 0, or minus an errno. */
int tb_send_repairs(struct tb_repairs *repairs, struct tb_results *results, int64_t now_ns);

/* When tb_send_repairs has something to do; infinite: not before something else happens. */
double tb_next_repair_ns(const struct tb_repairs *repairs, const struct tb_results *results);

/* What becomes of one request, for tests: returns a tb_refusal. `source` in network byte order. */
TB_EXPORT int tb_request(struct tb_repairs *repairs, struct tb_results *results, const uint8_t *datagram, size_t size,
                         uint32_t source, int64_t now_ns);

#endif
