"""Images launched as they are, with nothing that looks at them before: on the twin the kernel's own refusals are left."""

import ctypes

import numpy as np

from hpmoe.errors import LaunchError
from hpmoe.kernels import twin_target
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Status

SEED = 7


def launch_on_twin(image, buffers, timeout=1.0, seed=SEED):
    """Runs an image of one rank once. Raises the LaunchError that twin_target would."""
    library, pool = twin_target.load(), Pool()
    counters = pool.zeros((library.hpmoe_twin_counters(image.ctypes.data), 16), np.int32)
    targets = pool.zeros((len(counters) * 16,), np.int32)
    tables = pool.zeros((2 * library.hpmoe_twin_table_words(image.ctypes.data),), np.int32)
    addresses = np.array([a.ctypes.data for a in buffers], np.uint64)
    sizes, symmetric = np.array([a.nbytes for a in buffers], np.int64), np.zeros(max(len(buffers), 1), np.uint8)
    rank = twin_target.Rank(*(a.ctypes.data for a in (addresses, sizes, symmetric, counters, targets, tables)), 0)
    status, counts, fault = Status(), twin_target.Counts(), ctypes.create_string_buffer(8192)
    code = library.hpmoe_twin_launch(image.ctypes.data, image.nbytes, (twin_target.Rank * 1)(rank), 1, 1, timeout, seed,
                                     ctypes.byref(status), ctypes.byref(counts), fault, 8192)
    if code == 2:
        raise LaunchError(fault.value.decode())
    if code:
        raise make_error(status, image)
