"""More of error_cases.py: what hpmoe.testing refuses, and what its assertions say."""

import numpy as np
from ascend_helpers import own_targets
from error_cases import X, array, cases, doubled

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, assign_queues, chain, moe_ffn, overlap_comm, tile_partition
from hpmoe.kernels.cpu.target import CpuTarget
from hpmoe.rewriting import map_equations, primitives
from hpmoe.runtime.targets import register_target
from hpmoe.testing import assert_rewrite, assert_same, random_inputs
from hpmoe.testing.same import assert_close

AVALS = [ShapeDtypeStruct(*a) for a in (((4, 2), "float32"), ((4, 1), "int32"), ((4, 1), "float32"), ((1, 2, 6), "float32"),
                            ((1, 3, 2), "float32"))]
TEXT = """{ lambda x:f32[3]
  let a:f32[3] = %s
  in (a,) : f32[3] }"""


@hpmoe.transform(requires="program")
def triples(program):
    """mul x 2.0 -> mul x 3.0, which is wrong."""
    def rule(builder, eqn):
        return [builder.add(primitives.mul, eqn.inputs[0], 3.0)] if eqn.primitive is primitives.mul else None
    return map_equations(program, rule)


OTHER = array(4, 3)
def _drawn(**options):
    return lambda: random_inputs(moe_ffn, AVALS, **{"mesh": Mesh(2), **options})


def _same(transform=overlap_comm, f=doubled, avals=(X,), **options):
    return lambda: assert_same(transform, f, avals, **{"orders": 0, **options})


def _rewritten(before, after="", transform=triples):
    return lambda: assert_rewrite(transform, before, after)


class _Device(CpuTarget):
    name, on_device = "a device", True


def _on_a_device():
    with own_targets():
        register_target(_Device())
        _same(chain(tile_partition, assign_queues, hpmoe.fuse_persistent(target="a device")))()


cases("testing", {
    "routing by no name": _drawn(routing="hot"),
    "routing raises": _drawn(routing=lambda *sizes: [][1]),
    "routing of floats": _drawn(routing=lambda *sizes: np.zeros((2, 4, 1))),
    "uneven without a mesh": _drawn(routing="uneven", mesh=None),
    "a seed in words": _drawn(seed="one"),
    "a transform that is wrong": _same(triples),
    "another shape": lambda: assert_close("output", [np.zeros((2, 3))], [np.zeros((3, 2))], 0.0, "by the kernel"),
    "a reference that is staged": _same(reference=tile_partition(doubled)),
    "a reference that returns another shape": _same(reference=lambda x: x[:2]),
    "a reference that closes over a tensor": _same(reference=lambda x: x * OTHER),
    "a transform that returns a number": _same(lambda f: 3),
    "a transform that applies nowhere": _same(chain(overlap_comm, tile_partition)),
    "a transform for a device": _on_a_device,
    "orders in words": _same(orders="all"),
    "no routings": _same(routings=[]),
    "a negative tolerance": _same(tolerance=-1.0),
    "every routing refused": _same(f=lambda *a: moe_ffn(*a, capacity_factor=0.1), avals=AVALS, routings=["one_expert"]),
    "a rewrite to no text": _rewritten((doubled, [X]), None),
    "a rewrite of a number": _rewritten(3),
    "a rewrite to another text": _rewritten(TEXT % "mul x 2.0", TEXT % "mul x 4.0"),
    "a rewrite that is the identity": _rewritten((doubled, [X]), "", chain()),
    "a rewrite by a function": _rewritten(TEXT % "mul x 2.0", "", lambda ir: ir),
    "a text of no program": _rewritten("a = b"),
    "a text of no equation": _rewritten(TEXT % "multiply x 2.0"),
    "a text of no variable": _rewritten(TEXT % "mul y 2.0"),
})
