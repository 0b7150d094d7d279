"""`verify` and the native check refuse the same operations, for thousands of random changes."""

import collections
import dataclasses

import numpy as np
import pytest
from ascend_helpers import capped, npu
from helpers import Layer

import hpmoe
from hpmoe.kernels.native import load
from hpmoe.kernels.packing import pack
from hpmoe.verification.op_rules import shapes_fault

COPIES = hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1, 1, 1], replicas=2)
LAYERS = {"rows": hpmoe.moe_ffn, "dropped": hpmoe.send_rows(scheme="deduplicated")(capped(0.5, "position")),
          "relays": hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical"), "int8": hpmoe.quantize_rows(hpmoe.moe_ffn,
                                                                                                       combine=True),
          "weights": hpmoe.quantize_weights(hpmoe.moe_ffn), "guarded": hpmoe.guard_values(hpmoe.moe_ffn, fill="zero"),
          "copies": COPIES,
          **{f"{dtype} copies": hpmoe.quantize_weights(COPIES, dtype=dtype) for dtype in ("int8", "mxfp8")},
          "normed": lambda x, *rest: hpmoe.moe_ffn(hpmoe.token_ops.rms_norm_rows(x), *rest)}
CHANGES = 25  # of each operation
NOT_IN_IMAGES = "takes other columns of"  # bodies cut weights by themselves
SAID_ELSEWHERE = ("has an unknown", "has a word for", "moves elements to another dtype")  # by other rules of verify


def flows(name):
    relays = {"ep": 4, "node_size": 2} if name == "relays" else {"ep": 2}
    layer = Layer(T=9, H=32, I=16, E=4, K=2, **relays)
    tiles = hpmoe.tile_partition(LAYERS[name], rows=4, cols=16, machine=npu() if name == "weights" else None)
    f = hpmoe.spmd(hpmoe.assign_queues(hpmoe.overlap_comm(tiles), machine=npu()), layer.mesh)
    for direction in ("forward", "backward"):
        yield f.lower(*layer.arguments(), direction=direction)


def changed(rng, op, buffers):
    """Returns the operation with another operand, offset or parameter, or None if it has no parameter to change."""
    kind, operands = rng.integers(4), list(op.operands)
    if kind == 0 and operands:
        i = rng.integers(len(operands))
        operands[i] = dataclasses.replace(operands[i], buffer=int(rng.integers(len(buffers))))
    elif kind == 1 and operands:
        i = rng.integers(len(operands))
        operands[i] = dataclasses.replace(operands[i], offset=int(rng.integers(3)) * 8)
    elif kind == 2 and len(operands) > op.primitive.required:
        operands.pop()
    elif kind == 3:
        numbers = [f.name for f in dataclasses.fields(op.params) if type(getattr(op.params, f.name)) in (int, bool)]
        if not numbers:
            return None
        name = numbers[rng.integers(len(numbers))]
        value = type(getattr(op.params, name))(rng.integers(5))
        return op.replace(params=dataclasses.replace(op.params, **{name: value}))
    return op.replace(operands=tuple(operands))


def said_of_image(flow):
    image = pack(flow)
    return (load().hpmoe_image_fault(image.ctypes.data, image.nbytes) or b"").decode()


@pytest.mark.parametrize("name", LAYERS)
def test_both_refuse_the_same(name):
    rng, counts = np.random.default_rng(0), collections.Counter()
    for flow in flows(name):
        assert said_of_image(flow) == ""
        for i, op in enumerate(flow.ops):
            for _ in range(CHANGES):
                other = changed(rng, op, flow.buffers)
                if other is None or other == op:
                    continue
                in_python = shapes_fault(other, flow.buffers, flow.routes)
                in_cpp = said_of_image(flow.replace(ops=(*flow.ops[:i], other, *flow.ops[i + 1:])))
                of_rules = f" {op.opcode} " in in_cpp and not any(text in in_cpp for text in SAID_ELSEWHERE)
                assert in_cpp or not in_python or NOT_IN_IMAGES in in_python, (op, other, in_python)
                assert in_python or not of_rules, (op, other, in_cpp)
                counts[bool(in_python), bool(in_cpp)] += 1
    assert counts[True, True] > 50 and counts[False, False] > 20, counts
