"""Error cases of a first hour: other libraries' arrays, other dtypes, forgotten axes, names that do not exist."""

import jax.numpy as jnp
import mindspore as ms
import numpy as np
from error_cases import cases, doubled
from helpers import Layer, fused, tensors
from mindspore import mint

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, moe_ffn, spmd, tile_partition

X, IDS, WEIGHTS, UP, DOWN = tensors(a[0] for a in Layer(ep=1, T=4, H=4, I=2, E=3, K=2).arguments())
FUSED = fused()(moe_ffn)
CELL = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=2, num_moe_experts=2)
ON_TWO = spmd(moe_ffn, Mesh(2))


class Array:
    """An array of another library."""

    shape, dtype = (4, 4), "float32"

    def __array__(self, *unused):
        return np.ones(self.shape, np.float32)


Array.__module__ = "torch"


def softmax_over_tokens(x):
    return mint.nn.functional.softmax(x, dim=0)


def called(f, **changed):
    """A call of a layer in which some arguments are others."""
    given = {"x": X, "ids": IDS, "weights": WEIGHTS, "up": UP, "down": DOWN, **changed}
    return lambda: f(*given.values())


cases("beginners", {
    "softmax over tokens": lambda: tile_partition(softmax_over_tokens).lower(ShapeDtypeStruct((4, 3), "float32")),
    "float64 tokens": called(FUSED, x=X.astype(ms.float64)),
    "float64 tokens, called": called(moe_ffn, x=X.astype(ms.float64)),
    "float64 everywhere": called(FUSED, **{name: a.astype(ms.float64) for name, a in (
        ("x", X), ("weights", WEIGHTS), ("up", UP), ("down", DOWN))}),
    "int32 tokens": called(FUSED, x=X.astype(ms.int32)),
    "float32 tokens beside bfloat16 weights": called(FUSED, up=UP.astype(ms.bfloat16), down=DOWN.astype(ms.bfloat16)),
    "a PyTorch tensor": called(FUSED, x=Array()),
    "a PyTorch tensor, called": called(moe_ffn, x=Array()),
    "a JAX array": called(FUSED, x=jnp.ones((4, 4))),
    "a JAX array of weights, called": called(moe_ffn, up=jnp.ones((3, 4, 4))),
    "a JAX array of ids, called": called(moe_ffn, ids=jnp.ones((4, 2), "int32")),
    "a JAX array, traced": lambda: hpmoe.trace(doubled, jnp.ones(3)),
    "an array of words, traced": lambda: hpmoe.trace(doubled, np.array(["a"])),
    "a JAX array to a Cell": lambda: CELL(jnp.ones((2, 4))),
    "a NumPy array to a router": lambda: hpmoe.route(np.ones((4, 3), np.float32), 2),
    "ids of one dimension": called(FUSED, ids=IDS[:, 0]),
    "ids of one dimension, called": called(moe_ffn, ids=IDS[:, 0]),
    "ids out of range": called(FUSED, ids=IDS + 3),
    "lower without a rank axis": lambda: ON_TWO.lower(X, IDS, WEIGHTS, UP, DOWN),
    "memory without a rank axis": lambda: ON_TWO.memory(X, IDS, WEIGHTS, UP, DOWN),
    "in_axes of two for five": called(spmd(moe_ffn, Mesh(2), in_axes=(0, 0))),
    "in_axes of two for one": lambda: spmd(doubled, Mesh(2), in_axes=(0, 0))(X),
    "a number for a mesh": lambda: spmd(moe_ffn, 2),
    "num_tokens without spmd": lambda: FUSED(X, IDS, WEIGHTS, UP, DOWN, num_tokens=[4]),
    "a file that is not there": lambda: hpmoe.load_machine("nope.toml"),
    "a machine that is not there": lambda: hpmoe.load_machine("h200"),
    "a machine by nearly its name": lambda: hpmoe.load_machine("ascend_a4"),
    "a machine to load": lambda: hpmoe.load_machine(hpmoe.machines.ascend_a3),
    "the name of a machine": lambda: hpmoe.assign_queues(machine="ascend_a3"),
    "a dtype of no library": lambda: ShapeDtypeStruct((2,), "float"),
    "a misspelt keyword": lambda: hpmoe.route(X, topk=2),
    "a keyword like none": lambda: hpmoe.Mesh(color=2),
    "sizes by position": lambda: hpmoe.nn.MoELayer(4, 2, 2),
    "dispatched rows for a route": lambda: hpmoe.combine(X, X),
    "ids for a number of experts": lambda: hpmoe.router.aux_loss(X, IDS),
})
