"""A header batch as C code sees it: `struct tb_headers` of aggregator/engines/testbed_engine.h."""

import ctypes
from dataclasses import fields

from aggregator.engine import HeaderBatch


class CHeaders(ctypes.Structure):
    """Addresses of the arrays; the batch must outlive it."""

    _fields_ = tuple((field.name, ctypes.c_void_p) for field in fields(HeaderBatch))


def c_headers(batch: HeaderBatch) -> CHeaders:
    """The addresses of a batch's arrays."""
    return CHeaders(**{field.name: getattr(batch, field.name).ctypes.data for field in fields(HeaderBatch)})
