"""hpmoe doctor --target=ascend says what is true: all that it lists as run is run on the emulator, all else is refused
there."""

import numpy as np
import pytest
from ascend_helpers import capped, emulator, npu
from helpers import Layer
from int8_products import multiplied
from mindspore import Tensor
from native.image_builder import OWN, OWN_ALL
from one_body import run_on_emulator

import hpmoe
from hpmoe.commands.doctor_reach import reach
from hpmoe.kernels.ascendc.rules import check_flow
from hpmoe.kernels.protocol import Cols, MapCode, Opcode, Rows
from hpmoe.support.dtypes import BYTES, FLOATS, INTEGERS, numpy_dtype
from hpmoe.support.errors import LaunchError
from hpmoe.tile_ops.tile_primitive import TilePrimitive

SAID = reach("ascend")
RUNS, REFUSES = SAID["runs"]["operations"], SAID["refuses"]["operations"]
NUM_ROWS, COLS = 5, 12
INDEX = np.arange(NUM_ROWS * COLS, dtype=np.int32).reshape(NUM_ROWS, COLS) % 5
COLUMN = Rows.OWN, Cols.ONE
# Of each operation by itself: its operands of a dtype, those of another one, and its params.
ALONE = {
    "MAP": (lambda x: [(x, *OWN), (x, *OWN), (x, *OWN)], (MapCode.ADD,)),
    "SWIGLU": (lambda x: [(x, *OWN)] * 3, ()),
    "SWIGLU_GRAD": (lambda x: [(x, *OWN)] * 5, ()),
    "ROW_REDUCE": (lambda x: [(x[:, :1].copy(), *COLUMN), (x, *OWN_ALL)], (0,)),
    "ROW_DOT": (lambda x: [(x[:, :1].copy(), *COLUMN), (x, *OWN_ALL), (x, *OWN_ALL)], ()),
    "RMS_NORM": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL), 1e-6], ()),
    "RMS_NORM_GRAD": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL), (x, *OWN_ALL), 1e-6], ()),
    "GATHER": (lambda x: [(x, *OWN_ALL), (x.copy(), Rows.ALL, Cols.ALL), (INDEX[:, :1].copy(), *COLUMN)], ()),
    "TOP_K": (lambda x: [(x.copy(), *OWN_ALL), (INDEX.copy(), *OWN_ALL), (x, *OWN_ALL)], (1,)),
    "TAKE_COLS": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL), (INDEX, *OWN_ALL)], ()),
    "ADD_COLS": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL), (INDEX, *OWN_ALL)], ()),
    "CUMSUM": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL)], (0,)),
    "DRAW": (lambda x: [(x, *OWN), (INDEX[:1, :1].copy(), Rows.ONE, Cols.ONE)], (0,)),
    "PICK": (lambda x: [(x.copy(), *OWN), (x, *OWN_ALL)], (COLS, 1, 0, 1)),
    "PLACE": (lambda x: [(x.copy(), *OWN), (x, *OWN_ALL)], (COLS, 1, 0, 1)),
    "COUNT_OUTSIDE": (lambda x: [(x[:, :1].copy(), *OWN_ALL), (x, *OWN_ALL), -3.0, 3.0], ()),
    "COUNT_AND_FILL": (lambda x: [(x.copy(), *OWN_ALL), (INDEX[:, :2].copy(), *OWN_ALL), (x, *OWN_ALL), -3.0, 3.0], (0,)),
    "FILL_OUTSIDE": (lambda x: [(x.copy(), *OWN_ALL), (x, *OWN_ALL), (INDEX[:, :2].copy(), *OWN_ALL)], (0,)),
    "GROUP_REDUCE": (lambda x: [(x[:, :3].copy(), *OWN_ALL), (x, *OWN_ALL)], (1, 4, 1)),
}
INDICES = {("int32", name) for name in ("DRAW", "COUNT_AND_FILL", "FILL_OUTSIDE")}  # listed for a seed, and what is found
MOVED = {"GATHER", "PICK", "PLACE"}  # move bytes whatever they are; rows of bytes are refused by the host
LAYERS = {"rows": hpmoe.moe_ffn, "dropped": capped(0.5, "position"),
          "once": hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"),
          "relays": hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical"), "int8": hpmoe.quantize_rows(hpmoe.moe_ffn,
                                                                                                       combine=True),
          "weights": hpmoe.quantize_weights(hpmoe.moe_ffn), "guarded": hpmoe.guard_values(hpmoe.moe_ffn, fill="zero"),
          "copies": hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1, 1, 1], replicas=2)}
COUNTS = (lambda x, ids: hpmoe.router.drop_counts(hpmoe.dispatch(x, ids, num_local_experts=4, capacity_factor=0.5,
                                                          drop_policy="position")[1]), lambda x, ids: x.sum(0))


@pytest.mark.parametrize("name", ALONE)
def test_what_is_listed_runs_in_each_dtype_listed_and_no_other(name):
    for dtype in (*FLOATS, *INTEGERS, BYTES):
        operands, param = ALONE[name]
        x = np.ones((NUM_ROWS, COLS), numpy_dtype(dtype))
        is_said = name in SAID["runs"]["dtypes"][dtype] and (dtype, name) not in INDICES
        try:
            run_on_emulator(name, NUM_ROWS, *operands(x), param=param, cols=(COLS,), tile_rows=8)
        except LaunchError as error:
            assert "has no body in this kernel" in str(error) and not is_said, (dtype, error)
        else:
            assert is_said or dtype == BYTES and name in MOVED, dtype


def opcodes_of_layers():
    for name, f in LAYERS.items():
        layer = Layer(ep=4, T=9, H=32, I=16, E=4, K=2, node_size=2) if name == "relays" else Layer(
            ep=2, T=9, H=32, I=16, E=4, K=2)
        x, ids, *rest = (Tensor(a) for a in layer.arguments())
        fused = hpmoe.spmd(emulator(f, tiled_for=npu() if name == "weights" else None), layer.mesh)
        fused(x, ids, *rest)
        for direction in ("forward", "backward"):
            yield from (op.opcode for op in fused.lower(x, ids, *rest, direction=direction).flow.ops)
    int8 = Tensor(np.ones((4, 6, 32), np.int8)), Tensor(np.ones((4, 6), np.float32))
    for f, *more in (*((f,) for f in COUNTS), (multiplied, *int8)):
        fused = emulator(f)
        fused(x[0], ids[0], *more)
        yield from (op.opcode for op in fused.lower(x[0], ids[0], *more).flow.ops)


def test_all_that_is_listed_is_tried():
    found = set(opcodes_of_layers())
    # test_ascend_emulator.py runs NOTIFY (signal="peer"), test_ascend_950.py runs GMM_FP8.
    assert {name for name in RUNS if name not in ALONE} - found == {"NOTIFY", "GMM_FP8"}
    assert set(ALONE) <= set(RUNS) and not set(REFUSES) & (found | set(ALONE))
    assert sorted([*RUNS, *REFUSES]) == sorted(Opcode.__members__)


@pytest.mark.parametrize("name", REFUSES)
def test_what_is_refused_is_refused_by_name(name):
    """And by the kernel: tests/tile_ops/test_every_body.py."""
    doubled = hpmoe.assign_queues(hpmoe.tile_partition(lambda x: x * 2.0, rows=4), machine=npu())
    flow = doubled.lower(hpmoe.ShapeDtypeStruct((8, 32), "float32"))
    renamed = flow.replace(ops=(flow.ops[0].replace(primitive=TilePrimitive.named(name)), *flow.ops[1:]))
    with pytest.raises(hpmoe.ArgumentError, match=f"its tile body is {name}"):
        check_flow(renamed, "ascend")
