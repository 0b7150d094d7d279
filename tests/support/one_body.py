"""One tile operation over all row tiles of arrays, on the emulator of an NPU."""

from native.image_builder import ImageBuilder
from raw_launches import launch_on_emulator

from hpmoe.kernels.protocol import Domain, Dtype, Opcode
from hpmoe.support.dtypes import dtype_name


def run_on_emulator(name, num_rows, *operands, param=(), cols=(0,), tile_rows=4, seed=7):
    """Runs tasks of `tile_rows` rows and these columns on two cores. An operand is a number or an array [rows, cols] with
    modes; outputs are written."""
    builder, buffers, given = ImageBuilder(1, tile_rows, num_queues=3), [], []
    for operand in operands:
        if not isinstance(operand, float):
            array, *modes = operand
            buffers.append(array)
            dtype = Dtype[dtype_name(array.dtype).upper()]
            operand = (builder.buffer(array.shape[1], array.shape[0], dtype=dtype), *modes)
        given.append(operand)
    op = builder.op(Opcode[name], Domain.TILES, *given, num_rows=num_rows, param=param)
    for tile in range(-(-num_rows // tile_rows)):
        first = 0
        for width in cols:
            builder.task(op, tile, (first, width), queue=1 + tile % 2)
            first += width
    launch_on_emulator(builder.pack(), buffers, seed=seed, timeout=100.0)
