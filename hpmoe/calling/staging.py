"""Staged callables: each remembers the rewrite of one transform; lowering applies them from the inside out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import optree

from hpmoe.calling.graph_mode import Graphed
from hpmoe.errors import TransformError
from hpmoe.machine import Mesh, as_mesh
from hpmoe.program import Program

if TYPE_CHECKING:
    from hpmoe.calling.transform import Transform


class Staged(Graphed):
    """A callable at some stage of the chain: computes what `function` computes, through one more rewrite of its IR.

    Attributes:
        function: the callable it wraps, plain or staged.
        transform: the transform that made it.
        options: keyword options of the transform.
        level: what `lower` returns: "program", "tiles", "queues" or "kernel".
    """

    def __init__(self, function: Callable[..., Any], transform: Transform, options: dict[str, Any]):
        self.function, self.transform, self.options = function, transform, options
        self.level = transform.makes or level_of(function)
        functools.update_wrapper(self, function, updated=())
        self.__signature__ = signature_of(innermost(function))
        self._let_graphs_call()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(getattr(x, "hpmoe_record", None) for x in optree.tree_leaves((args, kwargs))):
            return innermost(self)(*args, **kwargs)
        return self._runner.call(args, kwargs)

    def interpret(self, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        """What a call computes, by the reference interpreter, in the legal order of tasks that `seed` picks."""
        return self._runner.call(args, kwargs, seed=seed)

    @functools.cached_property
    def _runner(self) -> Any:
        from hpmoe.calling.device_running import make_runner
        return make_runner(self, Mesh(1), batched=False)

    def lower(self, *args: Any, mesh: Mesh | None = None, direction: str = "forward", **kwargs: Any) -> Any:
        """The IR of this stage for arguments like `args`.

        Args:
            args, kwargs: as for a call; an array may also be an `hpmoe.Aval`.
            mesh: the ranks the function runs on; one by default.
            direction: "forward" or "backward".

        Returns:
            A Program, a Taskflow or an Executable, by the stage; printing it shows it. Where all ids are given it is the
            plan that a call would use, otherwise one for any routing.
        """
        return self._runner_on("lower", mesh).lower(args, kwargs, direction)

    def memory(self, *args: Any, mesh: Mesh | None = None, **kwargs: Any) -> Any:
        """The bytes that the plans for arguments like `args` take, forward and backward: hpmoe.calling.memory.MemoryReport.

        Exact for the routing where all arrays are given, as for `lower`, and otherwise for as many rows as can be received.
        """
        from hpmoe.calling.memory import memory_report
        return memory_report(self._runner_on("memory", mesh), args, kwargs)

    def _runner_on(self, who: str, mesh: Mesh | None) -> Any:
        """What runs one rank's share of a mesh; on one rank that of calls, whose plans it shares."""
        from hpmoe.calling.device_running import make_runner
        ranks = as_mesh(who, mesh)
        return self._runner if ranks.ep_size == 1 else make_runner(self, ranks, batched=False)

    def apply(self, program: Program) -> Any:
        """Applies the rewrites of all stages, innermost first, to a Program of one direction."""
        ir = self.function.apply(program) if isinstance(self.function, Staged) else program
        return ir if self.transform.before_vjp else self.transform.apply_to(ir, **self.options)

    @property
    def is_before_vjp(self) -> bool:
        """Whether all its stages rewrite the traced Program, so that a gradient is taken of their result."""
        return self.transform.before_vjp and (not isinstance(self.function, Staged) or self.function.is_before_vjp)

    def apply_before_vjp(self, program: Program) -> Program:
        """Applies to the traced Program the rewrites that its two directions are made from."""
        ir = self.function.apply_before_vjp(program) if isinstance(self.function, Staged) else program
        return self.transform.apply_to(ir, **self.options) if self.transform.before_vjp else ir

    def cache_info(self) -> Any:
        """Hits, misses, size and bound of the plan cache, as functools.lru_cache gives them."""
        return self._runner.cache_info()

    def __repr__(self) -> str:
        return f"{self.transform.label(self.options)} of {describe(self.function)}"


def innermost(f: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function under all stages."""
    while isinstance(f, Staged):
        f = f.function
    return f


def signature_of(f: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a plain function; TransformError where Python knows none, as of np.add."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError) as error:
        raise TransformError(f"{describe(f)}: Python knows no parameters of it; wrap it in a function that has them, such "
                             "as lambda x, y: ...") from error


def describe(f: Callable[..., Any]) -> str:
    """A callable as messages show it: a stage by its transforms, a plain function by its name and without an address."""
    return repr(f) if isinstance(f, Staged) else getattr(f, "__name__", type(f).__name__)


def level_of(f: Callable[..., Any]) -> str:
    return f.level if isinstance(f, Staged) else "program"
