"""Bytes and instructions of router bodies, counted by the emulator, against the charges of the machine model."""

import mindspore as ms
import pytest
from mindspore import mint
from test_ascend_counts import bodies_of_program

from hpmoe import ShapeDtypeStruct
from hpmoe.primitives.columns import add_columns, take_columns
from hpmoe.primitives.draw import draw
from hpmoe.primitives.guard import count_and_fill, count_outside
from hpmoe.tile_ops.tile_primitive import TilePrimitive

X, IDS = ShapeDtypeStruct((40, 192), "float32"), ShapeDtypeStruct((40, 8), "int32")
MOVED = {
    "TOP_K": (lambda x: mint.topk(x, 8), X), "TAKE_COLS": (lambda x, i: take_columns(x, i), X, IDS),
    "ADD_COLS": (lambda x, i: add_columns(x, i, num_cols=192), ShapeDtypeStruct((40, 8), "float32"), IDS),
    "CUMSUM": (lambda x: mint.cumsum(x, 1), X), "GROUP_REDUCE": (lambda x: mint.sum(x.reshape(40, 3, 64), 1), X),
    "PICK": (lambda x: x.reshape(40, 3, 64)[:, 1], X), "ROW_REDUCE": (lambda i: mint.amax(i, 1, True), IDS),
    "MAP": (lambda i: (i + i) * i, IDS),
}


@pytest.mark.parametrize("name", MOVED)
def test_bodies_move_what_the_model_charges(name):
    """PLACE writes zeros first, and is charged for all that it writes."""
    f, *avals = MOVED[name]
    for body in (b for b in bodies_of_program(f, *avals) if b.op.opcode == name):
        assert body.moved == body.charged or name == "PICK" and body.moved < body.charged, body


COUNTED = {"DRAW": (lambda s: draw(s, shape=(40, 192), stream=1), ShapeDtypeStruct((1,), "int32")), "TOP_K": MOVED["TOP_K"],
           "COUNT_OUTSIDE": (lambda x: count_outside(x, -3.0, 3.0), X),
           "COUNT_AND_FILL": (lambda x: count_and_fill(x, -3.0, 3.0, fill="mean")[0], X),
           "TAKE_COLS": (lambda x, i: take_columns(x, i), X, ShapeDtypeStruct((40, 192), "int32"))}


@pytest.mark.parametrize("name", COUNTED)
def test_instructions_are_those_that_the_definition_says(name):
    """Counts per element, without the assumed extra cost of Gather above one pass, and of Sort32 and MrgSort above two."""
    f, *avals = COUNTED[name]
    [body] = [b for b in bodies_of_program(f, *avals, cols=192) if b.op.opcode == name]
    primitive = TilePrimitive.named(name)
    slow = {"TAKE_COLS": 63, "TOP_K": 3 * 62}.get(name, 0)
    assert body.vector_bytes / 4 / (40 * 192) == pytest.approx(primitive.work.npu_passes - slow, rel=0.05)


def test_the_scalar_unit_is_charged_ten_cycles_an_element():
    [body] = bodies_of_program(lambda x: mint.cumsum(x, 1), X)
    assert body.busy * 5 / 4 / 640 == pytest.approx(40 * 192)
    [cast] = [b for b in bodies_of_program(lambda i: i.astype(ms.float32), IDS) if b.op.opcode == "MAP"]
    assert cast.busy * 5 / 4 / 640 == pytest.approx(40 * 8)
