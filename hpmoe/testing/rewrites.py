"""assert_rewrite: a transform makes of one text another."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.runtime.transform import Chain, Curried, Transform, shown_transform
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree
from hpmoe.testing.kernels import applied, small_tiles
from hpmoe.testing.program_parser import parse_program
from hpmoe.tracing.entry import trace_with_tree

IR = Program | Taskflow


@suggests_keywords
def assert_rewrite(transform: Function, before: str | IR | tuple[Function, Sequence[PyTree]], after: str,
                   mesh: Mesh | None = None, direction: str = "forward") -> None:
    """Asserts the text that a transform makes of a program, forward or backward, which no numbers are needed for.

    Args:
        transform: made by `hpmoe.transform`, with its options: `mine(rows=64)`; or a chain of such.
        before: the text of a Program, as `print` shows it; or a Program or Taskflow; or (f, avals), a plain function and its
            arguments on one rank, which the transform is put around, after what makes its level (see `assert_same`).
        after: the text of what it must make. Blanks do not count, nor does the first line, with name and provenance, where
            it is left out.
        mesh: the ranks of (f, avals); of other IR they are known.
        direction: "forward" or "backward": which program of (f, avals), or what the text of a Program is.

    Raises:
        AssertionError: it makes something else; with the difference, line by line.
        ArgumentError: before is none of these, or its text is none of a Program.

    Example:
        >>> import hpmoe
        >>> from hpmoe.rewriting import map_equations, primitives
        >>> from hpmoe.testing import assert_rewrite
        >>> @hpmoe.transform(requires="program", passes="both")
        ... def twice(program):
        ...     def rule(builder, eqn):
        ...         if eqn.primitive is primitives.add and eqn.inputs[0] is eqn.inputs[1]:
        ...             return [builder.add(primitives.mul, eqn.inputs[0], 2.0)]
        ...     return map_equations(program, rule)
        >>> assert_rewrite(twice, '''
        ...     { lambda x:f32[3]
        ...       let a:f32[3] = add x x
        ...       in (a,) : f32[3] }''', '''
        ...     { lambda x:f32[3]
        ...       let a:f32[3] = mul x 2.0
        ...       in (a,) : f32[3] }''')
        >>> assert_rewrite(twice, (lambda x: x * x, [hpmoe.ShapeDtypeStruct((3,), "float32")]), '''
        ...     { lambda x:f32[3] d_out:f32[3]
        ...       let a:f32[3] = mul d_out x
        ...           b:f32[3] = mul a 2.0
        ...       in (b,) : f32[3] }''', direction="backward")
    """
    check_argument(isinstance(after, str), "assert_rewrite", "after", f"a {type(after).__name__}", "a text")
    is_call = isinstance(before, tuple) and len(before) == 2 and callable(before[0])
    check_argument(is_call or isinstance(before, (str, Program, Taskflow)), "assert_rewrite", "before", repr(before)[:60],
                   "the text of a Program, a Program, a Taskflow, or (f, avals)")
    if isinstance(before, tuple):
        out = _lowered(transform, before[0], before[1], mesh, direction)
    else:
        out = apply_to(transform, parse_program(before, direction) if isinstance(before, str) else before)
    want, got = _lines(after), _lines(str(out))
    if not want or not want[0].startswith("#"):
        got = got[1:]
    if got != want:
        difference = "\n".join(difflib.unified_diff(want, got, "after", "made", lineterm="", n=len(want)))
        raise AssertionError(f"assert_rewrite: {shown_transform(transform)} makes another text.\n{difference}")


def _lowered(transform: Function, f: Function, avals: Sequence[PyTree], mesh: Mesh | None,
             direction: str) -> AnyIR:
    program, _ = trace_with_tree(f, tuple(avals), as_mesh("assert_rewrite", mesh))
    staged = applied(transform, f, small_tiles(program))
    check_argument(isinstance(staged, StagedFunction), "assert_rewrite", "transform", shown_transform(transform),
                   "a transform: it returned the function as it was")
    return staged.lower(*avals, mesh=mesh, direction=direction)


def apply_to(transform: Function, ir: AnyIR) -> AnyIR:
    """Returns the IR that a transform, or the transforms of a chain in order, make of other IR."""
    if isinstance(transform, Chain):
        for t in transform.transforms:
            ir = apply_to(t, ir)
        return ir
    check_argument(isinstance(transform, (Transform, Curried)), "assert_rewrite", "transform", shown_transform(transform),
                   "made by hpmoe.transform, or a chain of such")
    return transform.apply_to(ir)


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
