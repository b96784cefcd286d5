"""The edge's native input and output, a shared library that ctypes loads. Its C sources are beside this file."""

import ctypes
from importlib.util import find_spec

_MODULE = "aggregator.native._datagrams"
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


def load_library() -> ctypes.CDLL:
    """The library with receive.h and send.h. Raises OSError if this installation has not built it."""
    spec = find_spec(_MODULE)
    if spec is None or spec.origin is None:
        raise OSError(f"{_MODULE} is not built; run vagrant/provision.sh")
    library = ctypes.CDLL(spec.origin, use_errno=True)
    library.tb_receive.argtypes = [ctypes.c_int, *[_POINTER] * 2, _SIZE, *[_POINTER] * 6]
    library.tb_check.argtypes = [_POINTER, ctypes.c_char_p, _SIZE, ctypes.c_uint32, ctypes.c_uint32]
    library.tb_seal.argtypes = [_POINTER, _SIZE, _POINTER, _SIZE]
    library.tb_seal.restype = None
    library.tb_send.argtypes = [ctypes.c_int, ctypes.c_uint16, _POINTER, _SIZE, _POINTER, _SIZE]
    return library
