"""spmd: a per-rank function, at any stage of the chain, on all virtual ranks of a mesh in this process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NoReturn

from hpmoe.ir.stages import AnyIR
from hpmoe.machines.machine import Mesh
from hpmoe.runtime.arguments import check_in_axes
from hpmoe.runtime.graph_mode import Graphed
from hpmoe.runtime.plans import CacheInfo
from hpmoe.runtime.running import IMBALANCE, Runner
from hpmoe.runtime.staged import attribute_error
from hpmoe.runtime.staged_function import staged_of
from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree, is_traced
from hpmoe.tiling.memory_use import MemoryReport
from hpmoe.tracing.errors import not_traceable


class Spmd(Graphed):
    """A per-rank function on all virtual ranks of a mesh; see `spmd`."""

    def __init__(self, function: Function, mesh: Mesh, in_axes: PyTree = 0):
        self.function, self.mesh, self.in_axes = function, mesh, in_axes
        self.__name__ = getattr(function, "__name__", "spmd")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__signature__ = staged_of(function).signature
        self._let_graphs_call()

    @functools.cached_property
    def _runner(self) -> Runner:
        return Runner(staged_of(self.function), self.mesh, batched=True, in_axes=self.in_axes)

    def __call__(self, *args: PyTree, num_tokens: Sequence[int] | None = None, **kwargs: PyTree) -> PyTree:
        if is_traced(*args, *kwargs.values()):
            raise not_traceable(f"a call of {self!r}", "spmd runs all ranks, and a traced function is what one of them does",
                                "the function it is of, and spmd around the whole")
        return self._runner.call(args, kwargs, num_tokens)

    def interpret(self, *args: PyTree, seed: int = 0, num_tokens: Sequence[int] | None = None, **kwargs: PyTree) -> PyTree:
        """Computes a call by the reference interpreter, in the legal order of tasks that `seed` picks."""
        return self._runner.call(args, kwargs, num_tokens, seed)

    def lower(self, *args: PyTree, direction: str = "forward", **kwargs: PyTree) -> AnyIR:
        """Returns the IR of one rank, which is equal on all ranks; see StagedFunction.lower.

        `args` carry the leading rank axis as in a call; `direction` is "forward" or "backward".
        """
        return self._runner.lower(args, kwargs, direction)

    def memory(self, *args: PyTree, **kwargs: PyTree) -> MemoryReport:
        """Returns the bytes that the plans take on all ranks, forward and backward; see StagedFunction.memory."""
        return self._runner.memory(args, kwargs)

    def warm_up(self, *args: PyTree, imbalance: float = IMBALANCE, **kwargs: PyTree) -> None:
        """Makes the plans that calls with arguments like `args` will ask for. See StagedFunction.warm_up."""
        self._runner.warm_up(args, kwargs, imbalance)

    def cache_info(self) -> CacheInfo:
        return self._runner.plans.cache_info()

    def __getattr__(self, name: str) -> NoReturn:
        raise attribute_error(self, name)

    def __repr__(self) -> str:
        return f"spmd of {staged_of(self.function)} on {self.mesh}"


@suggests_keywords
def spmd(f: Function, mesh: Mesh, in_axes: PyTree = 0) -> Spmd:
    """Runs a per-rank function, at any level of the chain, on all ranks of a mesh.

    On an `hpmoe.Mesh` the ranks are virtual, in this process, and every array argument and result has a leading rank axis:
    hidden_states [num_ranks, T, H], weights [num_ranks, E_local, ...]. On `hpmoe.world()` each process is one rank and
    passes its own arrays, without a rank axis: hidden_states [T, H].

    The result is as differentiable as `f`. Ranks may hold fewer than T tokens: pass `num_tokens=[n_0, ...]` with a call;
    rows past a rank's number are padding, and zero in the result.

    With `in_axes`, as in jax.vmap, an argument whose axis is None is replicated: pass it once, without a rank axis, and all
    ranks read it. Use None for the weights of a router or a shared expert. The gradient is the sum over ranks, in float32
    and in the order of ranks, rounded once.

    On `hpmoe.world()` `num_tokens` is an int, the number of this rank's tokens. The gradient of an argument of axis None is
    only this rank's part; `hpmoe.all_reduce_gradients` sums the parts.

    If `f` ends in fuse_persistent(target="ascend"), the ranks are the processes of MindSpore's world: each passes its own
    arrays, without a rank axis, and its own `num_tokens`, an int.

    Args:
        f: the per-rank function, plain or staged; spmd is outermost.
        mesh: an `hpmoe.Mesh`, or `hpmoe.world()`.
        in_axes: 0 (a rank axis) or None (replicated) for all arguments; or a tuple with 0, None or a tree of both for each
            positional argument. Keyword arguments then have a rank axis.

    Returns:
        A function of the arguments of f, and of `num_tokens`.

    Raises:
        ArgumentError: in_axes does not match the arguments; the leading axis of an array is not the number of ranks; or
            num_tokens has wrong numbers, or f would mix padding into its result: with num_tokens, f may dispatch, compute
            each token separately, and sum over all tokens.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> rng = np.random.default_rng(0)
        >>> x, up, down = (ms.Tensor(rng.standard_normal(s), ms.float32) for s in [(2, 4, 8), (2, 1, 8, 6), (2, 1, 3, 8)])
        >>> ids = ms.Tensor(np.zeros((2, 4, 1)), ms.int32)
        >>> hpmoe.spmd(hpmoe.moe_ffn, hpmoe.Mesh(ep=2))(x, ids, ms.ops.ones((2, 4, 1)), up, down).shape
        (2, 4, 8)
        >>> scaled = hpmoe.spmd(lambda x, w: x * w, hpmoe.Mesh(ep=2), in_axes=(0, None))
        >>> ms.grad(lambda x, w: scaled(x, w).sum(), 1)(x, ms.ops.ones((8,))).shape
        (8,)
    """
    if not callable(f) or isinstance(f, Spmd):
        raise ArgumentError(f"spmd: f is {f!r}; it must be a per-rank function, plain or staged, and not under spmd yet")
    check_argument(isinstance(mesh, Mesh), "spmd", "mesh", repr(mesh), "an hpmoe.Mesh",
                   f"Write hpmoe.Mesh({mesh})." if isinstance(mesh, int) else "")
    check_in_axes(in_axes)
    return Spmd(f, mesh, in_axes)
