"""Hypothesis strategies: small layers, meshes, routings and chains of transforms.

Example:
    A law of a transform, on five layers and chains:

    >>> import hypothesis, hpmoe
    >>> from hpmoe.testing import assert_same, strategies
    >>> @hypothesis.settings(max_examples=5, deadline=None, database=None, derandomize=True)
    ... @hypothesis.given(strategies.layers(), strategies.chains())
    ... def law(layer, chain):
    ...     assert_same(hpmoe.chain(hpmoe.save_for_backward(policy="everything"), chain), *layer, orders=1)
    >>> law()
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from mindspore import Tensor, mint

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.machines.machine import Mesh
from hpmoe.machines.this_cpu import cpu
from hpmoe.moe import moe_ffn
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul
from hpmoe.primitives.swiglu import swiglu
from hpmoe.runtime.transform import Chain, chain
from hpmoe.support.trees import Function
from hpmoe.testing.inputs import ROUTINGS, Draw
from hpmoe.transforms.assign_queues import POLICIES, assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS, overlap_comm
from hpmoe.transforms.tile_partition import tile_partition


class Layer(NamedTuple):
    """A function of one rank's arrays, their avals, and the mesh: `assert_same(transform, *layer)`."""

    f: Function
    avals: tuple[ShapeDtypeStruct, ...]
    mesh: Mesh


def _scaled(x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return 2.5 * moe_ffn(x, ids, weights, up, down)


def _residual(x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + moe_ffn(x, ids, weights, up, down)


def _dropping(x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return moe_ffn(x, ids, weights, up, down, capacity_factor=0.7, drop_policy="position", return_drop_counts=True)


def _unweighted(x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    rows, route = dispatch(mint.tanh(x), ids, num_local_experts=up.shape[0])
    return combine(grouped_matmul(swiglu(grouped_matmul(rows, up, route)), down, route), route)


FUNCTIONS = (moe_ffn, _scaled, _residual, _dropping, _unweighted)


def meshes(most_ranks: int = 4) -> st.SearchStrategy[Mesh]:
    """Returns a strategy of meshes of one rank to `most_ranks`.

    Example:
        >>> from hpmoe.testing import strategies
        >>> from hypothesis import find
        >>> find(strategies.meshes(), lambda mesh: mesh.ep > 2)
        Mesh(ep=3)
    """
    return st.integers(1, most_ranks).map(Mesh)


@st.composite
def layers(draw: st.DrawFn, of_meshes: st.SearchStrategy[Mesh] | None = None,
           dtypes: Sequence[str] = ("float32",)) -> Layer:
    """Draws small layers around a dispatch: up to 6 tokens, also none, and 3 experts a rank; sizes are odd and even.

    Args:
        of_meshes: strategy of meshes; `meshes()` by default.
        dtypes: dtypes to draw from; all floating-point arrays of a layer have one.

    Example:
        >>> from hpmoe.testing import strategies
        >>> from hypothesis import find
        >>> layer = find(strategies.layers(), lambda layer: layer.mesh.ep == 2)
        >>> layer.f.__name__, layer.avals
        ('moe_ffn', (f32[0,1], i32[0,1], f32[0,1], f32[1,1,2], f32[1,1,1]))
    """
    mesh = draw(meshes() if of_meshes is None else of_meshes)
    local, tokens, width, inner = (draw(st.integers(*of)) for of in ((1, 3), (0, 6), (1, 5), (1, 4)))
    top_k, dtype = draw(st.integers(1, min(4, mesh.ep * local))), draw(st.sampled_from(dtypes))
    shapes = ((tokens, width), (tokens, top_k), (tokens, top_k), (local, width, 2 * inner), (local, inner, width))
    avals = tuple(ShapeDtypeStruct(shape, "int32" if i == 1 else dtype) for i, shape in enumerate(shapes))
    return Layer(draw(st.sampled_from(FUNCTIONS)), avals, mesh)


def routings() -> st.SearchStrategy[str | Draw]:
    """Returns a strategy of routings for `random_inputs` and `assert_same`: the named ones, and some with favoured experts.

    Example:
        >>> import hpmoe
        >>> from hpmoe.testing import random_inputs, strategies
        >>> from hypothesis import find
        >>> find(strategies.routings(), lambda routing: routing == "empty_ranks")
        'empty_ranks'
        >>> skewed = find(strategies.routings(), callable)
    """
    return st.sampled_from(sorted(ROUTINGS)) | st.integers(1, 4).map(_skewed)


def _skewed(power: int) -> Draw:
    def skewed(rng: np.random.Generator, ep_size: int, num_tokens: int, top_k: int, num_experts: int) -> np.ndarray:
        scores = rng.gumbel(size=(ep_size, num_tokens, num_experts)) - power * np.log(rng.permutation(num_experts) + 1.0)
        return np.argsort(-scores, axis=-1)[..., :top_k].astype(np.int32)
    return skewed


@st.composite
def chains(draw: st.DrawFn, program: Function | None = None,
           tiles: Function | None = None) -> Chain:
    """Draws chains that end in a kernel: small tiles, any signals, orders and policies, with and without overlap_comm.

    Args:
        program: a transform of Programs, or a chain of transforms of Programs, put before tile_partition; None for none.
        tiles: a transform of tile tasks, put directly after tile_partition; None for none.

    Example:
        >>> import hpmoe
        >>> from hpmoe.testing import strategies
        >>> from hypothesis import find
        >>> find(strategies.chains(hpmoe.send_rows(scheme="deduplicated")), lambda chain: "peer" in repr(chain))
        chain(send_rows(scheme=deduplicated), tile_partition(rows=1, cols=1), overlap_comm(...signal=peer...), ...)
    """
    size = {"rows": draw(st.integers(1, 5)), "cols": draw(st.integers(1, 7))}
    puts = {"signal": draw(st.sampled_from(SIGNALS)), "order": draw(st.sampled_from(sorted(ORDERS)))}
    overlap = [overlap_comm(**puts)] if draw(st.booleans()) else []
    queues = {"machine": cpu(draw(st.integers(1, 3))), "policy": draw(st.sampled_from(sorted(POLICIES)))}
    parts = [t for t in (program, tile_partition(**size), tiles, *overlap) if t is not None]
    return chain(*parts, assign_queues(**queues), fuse_persistent(timeout=10.0))
