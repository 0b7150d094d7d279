"""Random arguments of a function on the ranks of a mesh, by routings that kernels find hard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import optree
from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Program
from hpmoe.ir.token_rows import count_tokens, token_sources, token_vars
from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.routing.workload import sampled_ids
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.support.dtypes import FLOATS, rounded
from hpmoe.support.errors import call_user, check_argument, is_int, is_name
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree, flatten, unflatten
from hpmoe.tracing.entry import argument_aval, trace_with_tree

Draw = Callable[[np.random.Generator, int, int, int, int], np.ndarray]
INDEXES = {"gather": lambda eqn: eqn.inputs[0].aval.shape[0], "scatter": lambda eqn: eqn.params["num_rows"]}


def _uniform(rng: np.random.Generator, ep_size: int, num_tokens: int, top_k: int, num_experts: int) -> np.ndarray:
    return sampled_ids(ep_size, num_tokens, top_k, num_experts, seed=rng)


def _one_expert(rng: np.random.Generator, ep_size: int, num_tokens: int, top_k: int, num_experts: int) -> np.ndarray:
    last = np.full((ep_size, num_tokens, 1), num_experts - 1, np.int32)
    others = sampled_ids(ep_size, num_tokens, top_k - 1, num_experts - 1, seed=rng) if top_k > 1 else last[..., :0]
    return np.concatenate([last, others], axis=-1)


def _empty_ranks(rng: np.random.Generator, ep_size: int, num_tokens: int, top_k: int, num_experts: int) -> np.ndarray:
    return sampled_ids(ep_size, num_tokens, top_k, max(top_k, num_experts // ep_size), seed=rng)


ROUTINGS: dict[str, Draw] = {
    "uniform": _uniform, "one_expert": _one_expert, "empty_ranks": _empty_ranks, "uneven": _uniform}


class Inputs(tuple):
    """Arguments of a function as a tuple, which `random_inputs` returns; write `f(*inputs)`.

    Attributes:
        num_tokens: number of real leading tokens of each rank, for `spmd(f, mesh)(*inputs, num_tokens=inputs.num_tokens)`;
            None if all tokens are real.
    """

    num_tokens: tuple[int, ...] | None = None


@suggests_keywords
def random_inputs(f: Function, avals: Sequence[PyTree], mesh: Mesh | None = None, routing: str | Draw = "uniform",
                  seed: int = 0) -> Inputs:
    """Returns random arguments of a function: floats are normal, weights scaled by their rows, ids follow `routing`.

    Args:
        f: a plain function of one rank's arrays; it is traced, and inputs by which it dispatches are ids.
        avals: arguments of one rank: `hpmoe.ShapeDtypeStruct`s, also inside lists, tuples and dicts. Tensors, arrays and
            other values such as numbers are passed unchanged; on a mesh, tensors and arrays have a leading rank axis.
        mesh: ranks; arrays then have the leading rank axis that `spmd(f, mesh)` takes, even for one rank.
        routing: choice of the experts of each token:
            "uniform": any;
            "one_expert": the first choice of every token is the last expert, so with top_k of 1 that takes all;
            "empty_ranks": only experts of the first rank, as far as top_k allows, so that other ranks receive nothing;
            "uneven": any, and ranks hold fewer tokens than their arrays have rows, the last one of several none;
            or a function (rng, ep_size, num_tokens, top_k, num_experts) -> int [ep_size, num_tokens, top_k].
        seed: seed of the samples; equal arguments and seed give equal inputs.

    Returns:
        The arguments, a tuple of MindSpore tensors in the structure of `avals`, with the attribute `num_tokens`.

    Raises:
        ArgumentError: routing or seed has a wrong type or value, or routing is "uneven" without a mesh.

    Example:
        >>> import hpmoe
        >>> from hpmoe.testing import random_inputs
        >>> avals = [hpmoe.ShapeDtypeStruct(*a) for a in [((3, 4), "float32"), ((3, 1), "int32"), ((3, 1), "float32"),
        ...                                   ((2, 4, 6), "float32"), ((2, 3, 4), "float32")]]
        >>> inputs = random_inputs(hpmoe.moe_ffn, avals, hpmoe.Mesh(2), routing="one_expert")
        >>> inputs[1].asnumpy().reshape(2, 3).tolist(), inputs.num_tokens
        ([[3, 3, 3], [3, 3, 3]], None)
        >>> inputs = random_inputs(hpmoe.moe_ffn, avals, hpmoe.Mesh(2), routing="uneven")
        >>> hpmoe.spmd(hpmoe.moe_ffn, hpmoe.Mesh(2))(*inputs, num_tokens=inputs.num_tokens).shape, inputs.num_tokens
        ((2, 3, 4), (2, 0))
    """
    check_argument(callable(routing) or is_name(routing, ROUTINGS), "random_inputs", "routing", repr(routing),
                   f"one of {', '.join(ROUTINGS)}, or a function of (rng, ep_size, num_tokens, top_k, num_experts)")
    check_argument(routing != "uneven" or mesh is not None, "random_inputs", "routing", "'uneven'",
                   "another one without a mesh", "What a call on a mesh takes is num_tokens.")
    check_argument(is_int(seed, 0, 2**63), "random_inputs", "seed", repr(seed), "an int that is not negative")
    ep_size, rng = as_mesh("random_inputs", mesh).num_ranks, np.random.default_rng(seed)
    leaves, tree = flatten(tuple(avals))
    program, _ = trace_with_tree(f, unflatten(tree, local_leaves(leaves, mesh)),
                                 as_mesh("random_inputs", mesh))
    draws = _Draws(program, ep_size, ROUTINGS[routing] if isinstance(routing, str) else routing, rng)
    position = iter(range(len(program.inputs)))
    arrays = [leaf if argument_aval(leaf) is None else _given(leaf, draws(next(position)), mesh) for leaf in leaves]
    inputs = Inputs(optree.tree_unflatten(tree, arrays))
    if routing == "uneven":
        inputs.num_tokens = _uneven(ep_size, count_tokens(token_sources(program)))
    return inputs


def local_leaves(leaves: Iterable[PyTree], mesh: Mesh | None) -> list[PyTree]:
    """Returns one rank's part of arguments; arrays on a mesh are given for all ranks."""
    return [leaf if isinstance(leaf, ShapeDtypeStruct) or (aval := argument_aval(leaf)) is None
            else ShapeDtypeStruct(aval.shape[1:] if mesh is not None else aval.shape, aval.dtype) for leaf in leaves]


def _given(leaf: Tensor | np.ndarray | ShapeDtypeStruct, drawn: np.ndarray, mesh: Mesh | None) -> Tensor:
    """Returns a tensor as given, or the random one."""
    if isinstance(leaf, Tensor):
        return leaf
    return Tensor(leaf if isinstance(leaf, np.ndarray) else np.ascontiguousarray(drawn if mesh is not None else drawn[0]))


def _uneven(ep_size: int, num_tokens: int) -> tuple[int, ...]:
    """Returns token counts that fall evenly from num_tokens - 1 to 0."""
    if ep_size == 1:
        return (num_tokens // 2,)
    return tuple(-(-max(0, num_tokens - 1) * (ep_size - 1 - rank) // (ep_size - 1)) for rank in range(ep_size))


class _Draws:
    """Draws the inputs of a program, one after the other."""

    def __init__(self, program: Program, ep_size: int, routing: Draw, rng: np.random.Generator):
        self.program, self.ep_size, self.routing, self.rng = program, ep_size, routing, rng
        self.routes = {route.ids: route.aval for route in reversed(routes_of(program))}
        self.tokens = token_vars(program)

    def __call__(self, position: int) -> np.ndarray:
        """Returns a random input for all ranks, [ep, ...]."""
        var = self.program.inputs[position]
        dtype, shape = var.aval.dtype, tuple([self.ep_size, *fixed(var.aval.shape)])
        if position in self.routes:
            return rounded(self._ids(position, shape), dtype)
        if dtype in FLOATS or dtype == "float64":
            is_weight = len(shape) > 2 and var not in self.tokens
            scale = max(1, *shape[-2:-1]) ** -0.5 if is_weight else 1.0
            return rounded(self.rng.standard_normal(shape) * scale, dtype)
        return self.rng.integers(0, self._bound(position), shape).astype(dtype)

    def _ids(self, position: int, shape: tuple[int, ...]) -> np.ndarray:
        aval = self.routes[position]
        ids = np.asarray(call_user("random_inputs", "routing(rng, ep_size, num_tokens, top_k, num_experts)",
                                   "int [ep_size, num_tokens, top_k]", self.routing, self.rng, self.ep_size,
                                   aval.num_tokens, aval.num_choices, aval.num_model_experts))
        check_argument(ids.shape == shape and ids.dtype.kind in "iu", "random_inputs", "what routing returns",
                       f"{ids.dtype} of shape {ids.shape}", f"ints of shape {shape}")
        return ids

    def _bound(self, position: int) -> int:
        """Returns the exclusive bound of an input's integers: the number of rows that they index, or 2."""
        var = self.program.inputs[position]
        rows = [INDEXES[e.primitive.name](e) for e in self.program.equations
                if e.primitive.name in INDEXES and e.inputs[1] is var]
        return min([n for n in rows if isinstance(n, int) and n > 0], default=2)
