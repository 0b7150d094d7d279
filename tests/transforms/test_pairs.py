"""Two transforms of Programs in either order: the chain computes what each of them does, or its error prints the order that
does."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from value_changes import SCALE, changing

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, TransformError, chain, moe_ffn
from hpmoe.rewriting import map_equations, primitives
from hpmoe.testing import assert_same

MESH = Mesh(4, nodes=2)
AVALS = [ShapeDtypeStruct(*a) for a in (((3, 4), "float32"), ((3, 3), "int32"), ((3, 3), "float32"), ((2, 4, 6), "float32"),
                            ((2, 3, 4), "float32"))]
ROUNDING = 0.05  # of int8 elements, relative to the largest value


def accumulate_grads():
    return hpmoe.accumulate_grads(into={"gate_up_weight": ms.Tensor(np.ones((4, 2, 4, 6), np.float32))})


SHIPPED = {
    "save_for_backward": lambda: hpmoe.save_for_backward(policy="dispatched_rows"),
    "select_grads": lambda: hpmoe.select_grads(of=("topk_weights", "gate_up_weight")),
    "accumulate_grads": accumulate_grads,
    "guard_values": lambda: hpmoe.guard_values(fill="zero"),
    "limit_rows": lambda: hpmoe.limit_rows(rank_capacity_factor=4.0),
    "replicate_experts": lambda: hpmoe.replicate_experts(loads=[9, 1, 1, 1, 1, 1, 1, 1]),
    "send_rows": lambda: hpmoe.send_rows(scheme="hierarchical+deduplicated"),
    "quantize_rows": lambda: hpmoe.quantize_rows,
    "quantize_weights": lambda: hpmoe.quantize_weights,
}
OF_PASSES = {"send_rows", "quantize_rows", "quantize_weights", "double_and_halve"}


@hpmoe.transform(requires="program", passes="both")
def double_and_halve(program):
    """A transform of a user's own of each pass, which computes the same bits."""
    def rule(builder, eqn):
        if eqn.primitive is primitives.combine:
            return [builder.add(primitives.mul, builder.add(primitives.mul, builder.keep(eqn), 2.0), 0.5)]
    return map_equations(program, rule)


def of_scaled_rows(x, ids, weights, up, down):
    return moe_ffn(x * SCALE, ids, weights, up, down)


OWN = {"scale_rows": (lambda: changing("scale_rows"), of_scaled_rows), "double_and_halve": (lambda: double_and_halve, None)}


def is_allowed(first, second, names):
    """Returns False if the error of a chain of two prints the other order."""
    try:
        chain(first, second)(moe_ffn)
    except TransformError as error:
        other, one = (f"{name}" for name in names[::-1])
        assert f"write chain({other}" in str(error) and str(error).endswith(").") and one in str(error)
        assert names[0] in OF_PASSES and names[1] not in OF_PASSES
        return False
    return True


def assert_right(first, second, names, reference=None):
    """Raises AssertionError unless a chain of two computes the right values."""
    tolerance = ROUNDING if any(name.startswith("quantize") for name in names) else None
    assert_same(chain(first, second), moe_ffn, AVALS, MESH, orders=0, routings=["uniform"], tolerance=tolerance,
                reference=reference)


def assert_one_order_right(makers, names, reference=None):
    """Compares the values of one order in turn if both orders of two transforms are allowed."""
    allowed = [order for order in (names, names[::-1]) if is_allowed(*(makers[name]() for name in order), order)]
    order = allowed[sum(map(list(makers).index, names)) % len(allowed)]
    assert_right(*(makers[name]() for name in order), order, reference)


@pytest.mark.parametrize("names", [*itertools.combinations(SHIPPED, 2)], ids=" ".join)
def test_two_shipped_transforms(names):
    assert_one_order_right(SHIPPED, names)


@pytest.mark.parametrize("name, own", [(name, own) for i, name in enumerate(SHIPPED) for own in [*OWN][i % 2:]])
def test_shipped_transform_beside_an_own_one(name, own):
    make, reference = OWN[own]
    assert_one_order_right({**SHIPPED, own: make}, (name, own), reference)
