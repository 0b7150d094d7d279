"""StagedFunction: what a transform returns; a callable that computes what the function it wraps computes."""

from __future__ import annotations

import functools
import types
from typing import NoReturn

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.runtime.graph_mode import Graphed
from hpmoe.runtime.plans import CacheInfo
from hpmoe.runtime.rewrite import name_of
from hpmoe.runtime.running import IMBALANCE, Runner
from hpmoe.runtime.staged import Staged, attribute_error
from hpmoe.support.errors import TransformError
from hpmoe.support.trees import Function, PyTree, is_traced
from hpmoe.tiling.memory_use import MemoryReport


class StagedFunction(Graphed):
    """A callable at some stage of the chain: computes what `function` computes, through one more rewrite of its IR.

    Attributes:
        function: the callable it wraps, plain or staged.
        staged: the plain function under all stages, and their rewrites.
        level: level of the IR that `lower` returns: "program", "tiles", "queues" or "kernel".
    """

    def __init__(self, function: Function, staged: Staged):
        self.function, self.staged, self.level = function, staged, staged.level
        functools.update_wrapper(self, function, updated=())
        self.__signature__ = staged.signature
        self._let_graphs_call()

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        if is_traced(*args, *kwargs.values()):
            self._check_calls_alone()
            return self.staged.function(*args, **kwargs)
        return self._runner.call(args, kwargs)

    def _check_calls_alone(self) -> None:
        """Raises TransformError if tracing this function inside another one would skip transforms on which values depend."""
        if self.staged.differentiated:
            name = self.staged.differentiated[0].rewrite.__name__
            raise TransformError(f"{name}: a traced function calls {self!r}, and the trace would skip {name}; apply "
                                 f"{name} to the function that calls {name_of(self.staged.function)}")

    def __get__(self, instance: object, owner: type | None = None) -> PyTree:
        """Binds to an instance like a function, so that it is a method in a class."""
        return self if instance is None else types.MethodType(self, instance)

    def interpret(self, *args: PyTree, seed: int = 0, **kwargs: PyTree) -> PyTree:
        """Computes a call by the reference interpreter, in the legal order of tasks that `seed` picks."""
        return self._runner.call(args, kwargs, seed=seed)

    @functools.cached_property
    def _runner(self) -> Runner:
        return Runner(self.staged, Mesh(1), batched=False)

    def lower(self, *args: PyTree, mesh: Mesh | None = None, direction: str = "forward", **kwargs: PyTree) -> AnyIR:
        """Returns the IR of this stage for arguments like `args`.

        Args:
            args, kwargs: as for a call; an array may also be an `hpmoe.ShapeDtypeStruct`.
            mesh: the ranks the function runs on; one by default.
            direction: "forward" or "backward".

        Returns:
            A Program, a Taskflow or an Executable, by the stage; printing it shows it. Where all ids are given it is the
            plan that a call would use, otherwise one for any routing. Of a forward pass that computes ids, Stages: a
            sequence with one for each launch.
        """
        return self._runner_on("lower", mesh).lower(args, kwargs, direction)

    def memory(self, *args: PyTree, mesh: Mesh | None = None, **kwargs: PyTree) -> MemoryReport:
        """Returns the bytes that the plans for arguments like `args` take, forward and backward.

        Exact for the routing where all arrays are given, as for `lower`, and otherwise for as many rows as can be received.
        """
        return self._runner_on("memory", mesh).memory(args, kwargs)

    def warm_up(self, *args: PyTree, imbalance: float = IMBALANCE, **kwargs: PyTree) -> None:
        """Makes the plans that calls with arguments like `args` will ask for, forward, under a gradient, and backward.

        Nothing is computed. Plans for arrays serve the routing of their ids. Plans for Avals, and for computed ids, serve
        every routing by which no rank receives more than `imbalance` times the mean, equally for all routes. If the chain
        ends in fuse_persistent(keep_plans=True), plans are stored for other processes, too.

        Args:
            args, kwargs: as for a call; an array may also be an `hpmoe.ShapeDtypeStruct`.
            imbalance: rows of the rank that receives most, over the mean.

        Example:
            >>> import hpmoe
            >>> f = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu)))
            >>> f.warm_up(hpmoe.ShapeDtypeStruct((8, 4), "float32"))
            >>> f.cache_info().currsize
            3
        """
        self._runner.warm_up(args, kwargs, imbalance)

    def _runner_on(self, who: str, mesh: Mesh | None) -> Runner:
        """Returns the runner of one rank's part of a mesh; on one rank that of calls, whose plans it shares."""
        ranks = as_mesh(who, mesh)
        return self._runner if ranks.num_ranks == 1 else Runner(self.staged, ranks, batched=False)

    def apply(self, program: Program) -> AnyIR:
        """Rewrites the Program of the forward or backward pass by all steps after differentiation; returns the last IR."""
        return self.staged.apply(program)

    def cache_info(self) -> CacheInfo:
        """Returns hits, misses, number, bytes and most bytes of the plans that are kept."""
        return self._runner.plans.cache_info()

    def __getattr__(self, name: str) -> NoReturn:
        raise attribute_error(self, name)

    def __repr__(self) -> str:
        return str(self.staged)


def staged_of(f: Function) -> Staged:
    """Returns the Staged description of a callable, plain or staged."""
    return f.staged if isinstance(f, StagedFunction) else Staged(f)
