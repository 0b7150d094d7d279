"""Every opcode, function and dtype on every target has a body or is refused by name: never a wrong number."""

import dataclasses
import types

import numpy as np
import pytest
from ascend_helpers import npu
from bodies_in_tiles import run as run_on_cpu
from native.image_builder import OWN, OWN_ALL, ImageBuilder
from raw_launches import launch_on_emulator

import hpmoe
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.kernels.ascendc.rules import check_image
from hpmoe.kernels.cpu.target import CPU
from hpmoe.kernels.native import load
from hpmoe.kernels.protocol import Cols, Domain, Dtype, Extent, MapCode, Opcode, Reduction, Rows
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.tile_ops.functions import OF_INTEGERS, Function
from hpmoe.tile_ops.params import Elementwise
from hpmoe.tile_ops.tile_primitive import TilePrimitive

FLOATS = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)
INTEGERS = (Dtype.INT32, Dtype.INT64)
DTYPES = (*FLOATS, *INTEGERS, max(Dtype) + 1)  # the last is none
ROWS, COLS = 5, 32
ONE_COLUMN = Rows.OWN, Cols.ONE
REFUSED_BY_CPU = r"the packed image is broken: an? (MAP|op|operand|buffer|ROW_REDUCE|GMM|QUANTIZE|DEQUANTIZE)"
REFUSED_BY_EMULATOR = r"has no body in this kernel: it asks for [A-Z]"
BODIES = {unit: [p.name for p in TilePrimitive.members.values() if p.unit == unit and p.name in EMULATOR.bodies.operations]
          for unit in ("aic", "aiv")}
COSH, MEDIAN = (types.SimpleNamespace(name=name, number=number) for name, number in (("cosh", 99), ("MEDIAN", 99)))
TOLERANCE = {Dtype.FLOAT32: 2e-5, Dtype.BFLOAT16: 2e-2, Dtype.FLOAT16: 3e-3}


def values(cols, dtype, seed, rows=ROWS):
    """Positive, so that every function has a value there."""
    numbers = np.random.default_rng(seed).uniform(0.5, 2.0, (rows, cols))
    kind = numpy_dtype(Dtype(dtype).name.lower()) if dtype in list(Dtype) else np.dtype(np.float32)
    return np.ascontiguousarray(numbers.astype(kind))


def one_task(opcode, operands, param=(), queue=1, num_queues=3):
    """An image of one task. An operand is a number, or (columns, rows, dtype, modes); the arrays are returned with it."""
    builder, buffers, given = ImageBuilder(1, 16, num_queues), [], []
    for i, operand in enumerate(operands):
        if not isinstance(operand, float):
            cols, rows, dtype, modes = operand
            buffers.append(values(cols, dtype, i, rows))
            operand = (builder.buffer(cols, rows, dtype=dtype), *modes)
        given.append(operand)
    op = builder.op(opcode, Domain.TILES, *given, num_rows=ROWS, param=param)
    builder.task(op, 0, (0, COLS), queue=queue)
    return builder, buffers


def on_cpu(*args, **options):
    builder, buffers = one_task(*args, **options)
    run_on_cpu(builder, buffers)
    return buffers


def on_emulator(*args, **options):
    """Past the check that the host makes, so that only the kernel itself is left to refuse."""
    builder, buffers = one_task(*args, **options)
    launch_on_emulator(builder.pack(), buffers)
    return buffers


def wide(array):
    return array.astype(np.float64)


def assert_refused_everywhere(*args, **options):
    with pytest.raises(LaunchError, match=REFUSED_BY_CPU):
        on_cpu(*args, **options)
    with pytest.raises(LaunchError, match=REFUSED_BY_CPU):
        check_image(one_task(*args, **options)[0].pack())
    with pytest.raises(LaunchError, match=REFUSED_BY_EMULATOR):
        on_emulator(*args, **options)


def assert_refused_by_kernel(*args, **options):
    with pytest.raises(LaunchError, match=REFUSED_BY_EMULATOR):
        on_emulator(*args, **options)


def num_inputs(code):
    return 1 if code < 32 else 2 if code < 64 else 3


def expected(code, inputs):
    name = MapCode(code).name.lower()
    return inputs[0] if name == "copy" else REGISTRY[name].rules["reference"](*inputs)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in INTEGERS], ids=str)
def test_every_function(dtype):
    """Codes that are none, and those of another number of inputs, are refused, but on a CPU."""
    computed = 0
    for code in range(-1, max(MapCode) + 5):
        for count in (1, 2, 3):
            operands = [(COLS, ROWS, dtype, OWN)] * (1 + count)
            if code not in list(MapCode) or count != num_inputs(code) or dtype not in FLOATS:
                if dtype in FLOATS or count == 1:
                    assert_refused_by_kernel(Opcode.MAP, operands, (code,))
                continue
            for run in (on_cpu, on_emulator):
                out, *inputs = run(Opcode.MAP, operands, (code,))
                want = expected(code, [wide(a) for a in inputs])
                np.testing.assert_allclose(wide(out), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
                computed += 1
    assert computed == (2 * len(MapCode) if dtype in FLOATS else 0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_function_of_integers(dtype):
    """Equals NumPy; a function only of floats is refused."""
    for code in MapCode:
        operands = [(COLS, ROWS, dtype, OWN)] * (1 + num_inputs(code))
        if Function.named(code.name.lower()) not in OF_INTEGERS:
            with pytest.raises(LaunchError, match="a MAP applies a function of floats to the integers of operand 0"):
                on_cpu(Opcode.MAP, operands, (code,))
            assert_refused_by_kernel(Opcode.MAP, operands, (code,))
            continue
        for run in (on_cpu, on_emulator):
            out, *inputs = run(Opcode.MAP, operands, (code,))
            np.testing.assert_array_equal(out, np.asarray(expected(code, inputs)).astype(out.dtype), err_msg=code.name)


@pytest.mark.parametrize("code", sorted({*range(-1, max(MapCode) + 5)} - {*MapCode}))
def test_a_function_that_is_none_is_refused_by_host_and_kernel(code):
    assert_refused_everywhere(Opcode.MAP, [(COLS, ROWS, Dtype.FLOAT32, OWN)] * 2, (code,))


BODIES_OF_ROWS = {
    "MAP": [(COLS, ROWS, OWN)] * 3,
    "SWIGLU": [(COLS, ROWS, OWN)] * 3,
    "SWIGLU_GRAD": [(COLS, ROWS, OWN)] * 5,
    "ROW_REDUCE": [(1, ROWS, ONE_COLUMN), (COLS, ROWS, OWN_ALL)],
    "ROW_DOT": [(1, ROWS, ONE_COLUMN), *[(COLS, ROWS, OWN_ALL)] * 2],
    "GMM": [(COLS, ROWS, OWN), (16, ROWS, OWN_ALL), (COLS, 16, (Rows.ALL, Cols.OWN))],
}


@pytest.mark.parametrize("name", BODIES_OF_ROWS)
def test_every_dtype_of_every_operand(name):
    """Each operand in each dtype, the others float32: CPU and kernel compute the same, or refuse."""
    shapes, opcode = BODIES_OF_ROWS[name], Opcode[name]
    options = {"param": (MapCode.ADD,) if name == "MAP" else (0,), "queue": 0 if name == "GMM" else 1}
    num_outputs = 2 if name == "SWIGLU_GRAD" else 1
    for i in range(len(shapes)):
        for dtype in DTYPES:
            operands = [(cols, rows, dtype if j == i else Dtype.FLOAT32, modes)
                        for j, (cols, rows, modes) in enumerate(shapes)]
            if dtype not in FLOATS and not (dtype in INTEGERS and name in ("MAP", "ROW_REDUCE")):
                assert_refused_everywhere(opcode, operands, **options)
            elif name == "GMM" and dtype != Dtype.FLOAT32:  # the matrix core takes no mixture, which check_flow says
                with pytest.raises(LaunchError, match=REFUSED_BY_EMULATOR):
                    on_emulator(opcode, operands, **options)
            else:
                for got, want in zip(*(run(opcode, operands, **options)[:num_outputs] for run in (on_emulator, on_cpu)),
                                     strict=True):
                    np.testing.assert_allclose(wide(got), wide(want), rtol=TOLERANCE.get(dtype, 0), atol=1e-5)


@pytest.mark.parametrize("unit, queue", [("aic", 0), ("aiv", 1)])
def test_every_opcode_without_a_body_is_refused_by_the_kernel(unit, queue):
    """The list of the host is that of the kernel: what is not in it has no body there."""
    for opcode in range(-1, max(Opcode) + 3):
        if opcode in list(Opcode) and Opcode(opcode).name in BODIES[unit]:
            continue
        builder, buffers = one_task(Opcode.MAP, [(COLS, ROWS, Dtype.FLOAT32, OWN)] * 2, queue=queue)
        builder.tables["ops"][0]["opcode"] = opcode
        with pytest.raises(LaunchError, match=REFUSED_BY_EMULATOR) as error:
            launch_on_emulator(builder.pack(), buffers)
        assert (Opcode(opcode).name if opcode in list(Opcode) else f"Opcode {opcode}") in str(error.value)


def test_a_reduction_that_is_none_is_refused():
    for code in (-1, len(Reduction), 77):
        assert_refused_everywhere(Opcode.ROW_REDUCE, [(1, ROWS, Dtype.FLOAT32, ONE_COLUMN),
                                                      (COLS, ROWS, Dtype.FLOAT32, OWN_ALL)], (code,))


@pytest.mark.parametrize("packed, dtype, param", [
    (COLS + 4, Dtype.UINT8, (2, 0, 0)), (COLS + 4, Dtype.UINT8, (0, 2, 0)), (COLS + 1, Dtype.UINT8, (0, 1, 0)),
    (COLS + 4, Dtype.UINT8, (0, 0, -1)), (COLS + 5, Dtype.UINT8, (0, 0, 0)), (COLS + 4, Dtype.FLOAT32, (0, 0, 0))])
@pytest.mark.parametrize("opcode", [Opcode.QUANTIZE, Opcode.DEQUANTIZE])
def test_quantised_rows_of_no_format_are_refused(opcode, packed, dtype, param):
    def rows(packed, dtype):
        operands = [(packed, ROWS, dtype, OWN_ALL), (COLS, ROWS, Dtype.FLOAT32, OWN_ALL)]
        return operands if opcode == Opcode.QUANTIZE else operands[::-1]
    on_cpu(opcode, rows(COLS + 4, Dtype.UINT8), (0, 0, 0))
    assert_refused_everywhere(opcode, rows(packed, dtype), param)


def test_an_extent_that_is_none_is_refused():
    builder, buffers = one_task(Opcode.MAP, [(COLS, ROWS, Dtype.FLOAT32, OWN)] * 2)
    builder.route(1, 1, 1, 1)
    buffers.append(np.zeros((1, 1), np.int32))
    event = builder.event(extent=max(Extent) + 1)
    image = builder.pack()
    with pytest.raises(LaunchError, match="the packed image is broken: an event's extent"):
        check_image(image)
    with pytest.raises(LaunchError, match=rf"event {event} of rank 0 counts what this kernel does not know"):
        launch_on_emulator(image, buffers)


@pytest.mark.parametrize("opcode, param, words", [
    ("GMM", 2, "a GMM has a word for is_transposed that is neither 0 nor 1"),
    ("LAUNCH", 3, "a LAUNCH has an unknown kind of rows"),
])
def test_a_flag_that_is_none_is_refused(opcode, param, words):
    operands = [(cols, rows, Dtype.FLOAT32, modes) for cols, rows, modes in BODIES_OF_ROWS.get(opcode, ())]
    builder, _ = one_task(Opcode[opcode], operands, (param,))
    if opcode == "LAUNCH":
        builder.tables["ops"][0]["domain"] = Domain.ONCE
    assert words in fault_of(builder)


def fault_of(builder):
    image = builder.pack()
    return (load().hpmoe_image_fault(image.ctypes.data, image.nbytes) or b"").decode()


def test_a_matrix_of_all_experts_is_no_weight():
    """A dense weight may lie in one matrix or in rows, but not in the matrices of several experts."""
    fault_of_half = "a GMM takes the matrices of experts of operand 2 as one"
    for rows_per_expert, fault in ((0, ""), (COLS, ""), (COLS // 2, fault_of_half)):
        builder, _ = one_task(Opcode.GMM, [(COLS, ROWS, Dtype.FLOAT32, OWN), (COLS, ROWS, Dtype.FLOAT32, OWN_ALL),
                                           (COLS, COLS, Dtype.FLOAT32, (Rows.ALL, Cols.OWN))], (0,))
        builder.tables["buffers"][2]["rows_per_expert"] = rows_per_expert
        assert fault_of(builder) == fault


# --- what a taskflow asks for, by its name, whatever it is bound for ---


def planned(f, *avals):
    flow = hpmoe.tile_partition.apply_to(hpmoe.trace(f, *avals), rows=16, cols=32)
    return hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(flow), machine=npu())


def changed(flow, **changes):
    """A taskflow as no transform would let it through: its first operation with other fields."""
    return flow.replace(ops=(flow.ops[0].replace(**changes), *flow.ops[1:]))


@pytest.mark.parametrize("changes, words", [
    ({"params": Elementwise(COSH)}, r"fuse_persistent\(target=.cpu.\): add: its function is cosh; it must be one of abs"),
    ({"primitive": MEDIAN}, r"fuse_persistent\(target=.cpu.\): add: its tile body is MEDIAN; it must be one of ADD_COLS"),
])
def test_a_taskflow_that_asks_for_no_body_is_refused_by_name(changes, words):
    flow = planned(lambda x, y: x + y, hpmoe.ShapeDtypeStruct((8, 32), "float32"),
                   hpmoe.ShapeDtypeStruct((8, 32), "float32"))
    CPU.compile([flow], 1.0)
    with pytest.raises(ArgumentError, match=words):
        CPU.compile([changed(flow, **changes)], 1.0)


def test_a_taskflow_with_integers_is_refused_by_name():
    flow = planned(lambda x, y: hpmoe.swiglu(x) + y, hpmoe.ShapeDtypeStruct((8, 64), "float32"),
                   hpmoe.ShapeDtypeStruct((8, 32), "float32"))
    buffers = tuple(dataclasses.replace(b, dtype="int32") if b is flow.buffers[flow.ops[0].operands[1].buffer] else b
                    for b in flow.buffers)
    with pytest.raises(ArgumentError, match="swiglu: the dtype of operand 1 is int32; it must be one of float32,"):
        CPU.compile([flow.replace(buffers=buffers)], 1.0)
