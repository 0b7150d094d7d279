"""Images launched as they are, with nothing that looks at them before: on the emulator the kernel's own refusals are
left."""

import ctypes

import numpy as np

from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Status
from hpmoe.support.errors import LaunchError

FAULT_BYTES = 8192


def launch_on_emulator(image, *buffers, num_tokens=0, timeout=20.0, seed=7, num_launches=1):
    """Runs `num_launches` launches of an image with the arrays of each rank; returns the counters of each rank's events.

    Raises:
        LaunchError: the kernel reported a failure or broke a rule of the hardware.
    """
    library, pool, num_ranks = emulator_library.load(), Pool(), int(unpack_image(image)[0]["ep_size"])
    num_counters = library.hpmoe_emulator_counters(image.ctypes.data)
    counters = pool.zeros((num_ranks, num_counters, library.hpmoe_emulator_counter_words()), np.int32)
    targets = pool.zeros((num_ranks, num_counters, 16), np.int32)
    tables = pool.zeros((num_ranks, 2 * library.hpmoe_emulator_table_words(image.ctypes.data)), np.int32)
    ranks, alive = (emulator_library.Rank * num_ranks)(), []
    for rank in range(num_ranks):
        mine = buffers[rank] if buffers else []
        fields = (np.array([a.ctypes.data for a in mine], np.uint64), np.array([a.nbytes for a in mine], np.int64),
                  np.zeros(len(mine), np.uint8), counters[rank], targets[rank], tables[rank])
        alive += fields
        for (name, _), array in zip(emulator_library.Rank._fields_, fields, strict=False):
            setattr(ranks[rank], name, array.ctypes.data)
        ranks[rank].num_tokens = num_tokens
    status, counts, fault = Status(), emulator_library.Counts(), ctypes.create_string_buffer(FAULT_BYTES)
    code = library.hpmoe_emulator_launch(image.ctypes.data, image.nbytes, ranks, num_ranks, 1, num_launches, timeout, seed,
                                     ctypes.byref(status), ctypes.byref(counts), fault, FAULT_BYTES)
    if code == 2:
        raise LaunchError(fault.value.decode())
    if code:
        raise make_error(status, image)
    return counters[:, num_counters - library.hpmoe_emulator_targets(image.ctypes.data):, 0]
