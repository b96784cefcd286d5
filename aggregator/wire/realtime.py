"""Keeping a process that moves packets from being held up."""

import gc
import os

# Hosts and edges have the same: they take turns, so that neither starves the other on few processors.
PRIORITY = 5


def become_realtime() -> bool:
    """Take real-time priority (SCHED_FIFO) and end garbage collection; False if the priority is not allowed.

    Call it after set-up: what exists then is never looked at by the collector again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True
