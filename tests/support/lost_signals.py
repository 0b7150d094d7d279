"""A launch on the Ascend emulator whose second task waits for a signal that does not come."""

import numpy as np
import pytest
from ascend_helpers import f32, npu
from mindspore import mint

import hpmoe
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.kernels.image import unpack_image
from hpmoe.support.errors import LaunchError


def simulated_wait_us(timeout):
    """Returns the microseconds on the emulator's system counter until the launch gave up."""
    program = hpmoe.trace(lambda x, w: mint.tanh(x @ w), f32(16, 16), f32(16, 16))
    flow = hpmoe.tile_partition.apply_to(program, rows=16, cols=32)
    flow = hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(flow), machine=npu())
    kernel = EMULATOR.compile([flow], timeout)
    image = kernel.image.copy()
    unpack_image(image)[1]["templates"]["num_signals"] = 0
    lost = kernel.replace(image=image)
    with pytest.raises(LaunchError, match="waited too long"):
        lost.run([[np.ones((16, 16), np.float32)] * 2])
    return lost.state.counts.system_us
