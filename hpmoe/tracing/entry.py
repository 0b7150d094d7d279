"""trace: runs a function on tracers and gives back its Program."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
from mindspore import Tensor

from hpmoe.errors import ArgumentError, TraceError
from hpmoe.machine import Mesh
from hpmoe.program import Atom, Aval, Program, live_equations
from hpmoe.tracing.errors import is_library_file, not_traceable, short_path
from hpmoe.tracing.recognize import recognize
from hpmoe.tracing.recorder import Recorder, recording, tensor_aval
from hpmoe.tracing.tracer import RouteTracer


def trace(f: Callable[..., Any], *args: Any, mesh: Mesh | None = None) -> Program:
    """Runs `f` once on abstract tensors and records what it computes; no tensor gets memory.

    Args:
        f: a pure function of tensors, one rank's share where a mesh is given. It may call mint, ops, Tensor methods,
            operators, cells, other functions and hpmoe's primitives.
        args: pytrees of MindSpore tensors, NumPy arrays and `hpmoe.Aval`; other leaves are passed on as they are.
        mesh: the ranks that run `f` together; one by default.

    Returns:
        The Program. Tensors `f` closed over are its last inputs, `Program.captures`.

    Raises:
        TraceError: `f` does something a Program cannot record; the text has the line and what to write instead.
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> from mindspore import mint
        >>> from hpmoe.program import Aval
        >>> x, w = Aval((4, 8), "float32"), Aval((8, 3), "float32")
        >>> print(trace(lambda x, w: mint.nn.functional.silu(x @ w), x, w))
        # <lambda>
        { lambda x:f32[4,8] w:f32[8,3]
          let a:f32[4,3] = matmul x w
              b:f32[4,3] = silu a
          in (b,) : f32[4,3] }
    """
    return trace_with_tree(f, args, mesh)[0]


def trace_with_tree(f: Callable[..., Any], args: Sequence[Any],
                    mesh: Mesh | None = None) -> tuple[Program, optree.PyTreeSpec]:
    """As `trace`, and the tree of `f`'s result, whose leaves are the Program's outputs in order."""
    paths, leaves, tree = optree.tree_flatten_with_path(tuple(args))
    names = argument_names(f, paths)
    recorder = Recorder((mesh or Mesh()).ep_size)
    inputs, input_names, given = [], [], []
    for name, leaf in zip(names, leaves, strict=True):
        aval = argument_aval(leaf)
        given.append(leaf if aval is None else recorder.input(aval))
        if aval is not None:
            inputs.append(given[-1].hpmoe_atom)
            input_names.append(name)
    with recording(recorder):
        result = _run(f, optree.tree_unflatten(tree, given), recorder)
        results, out_tree = optree.tree_flatten(result)
        outputs = tuple(_output_atom(r, recorder) for r in results)
    captures = tuple(recorder.captures.values())
    program = recognize(Program(
        name=function_name(f), inputs=(*inputs, *(var for _, var in captures)),
        input_names=(*input_names, *recorder.capture_names(tuple(input_names))),
        equations=live_equations(recorder.builder.equations, outputs), outputs=outputs, ep_size=recorder.ep_size,
        captures=tuple(tensor for tensor, _ in captures)))
    return _drop_unread_captures(program), out_tree


def argument_aval(leaf: Any) -> Aval | None:
    """The abstract value of an argument's leaf, or None for one that is no tensor."""
    if isinstance(leaf, Aval):
        return leaf
    if isinstance(leaf, Tensor):
        return tensor_aval(leaf)
    if isinstance(leaf, np.ndarray):
        return Aval(leaf.shape, str(leaf.dtype))
    return None


def function_name(f: Callable[..., Any]) -> str:
    while hasattr(f, "func"):
        f = f.func
    return getattr(f, "__name__", type(f).__name__)


def argument_names(f: Callable[..., Any], paths: Sequence[tuple[Any, ...]]) -> list[str]:
    """`x` for the argument x, `x_key_0` for a leaf inside it; distinct."""
    function = getattr(f, "construct", f)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    names: list[str] = []
    for index, *keys in paths:
        head = positional[index] if index < len(positional) else f"{rest}_{index - len(positional)}"
        name = base = re.sub(r"\W", "_", "_".join([head, *map(str, keys)]))
        while name in names:
            name = f"{base}_{len(names)}"
        names.append(name)
    return names


def _run(f: Callable[..., Any], args: tuple[Any, ...], recorder: Recorder) -> Any:
    try:
        result = f(*args)
    except (TraceError, ArgumentError):
        raise
    except Exception as error:
        if recorder.pending is not None:
            raise recorder.pending from error
        explained = _explain(error)
        if explained is None:
            raise
        raise explained from error
    if recorder.pending is not None:
        raise recorder.pending
    return result


def _explain(error: Exception) -> TraceError | None:
    """The TraceError for an exception of MindSpore's that a tracer brought about; None for any other."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if not is_library_file(f.filename)]
    source = f"{short_path(lines[-1].filename)}:{lines[-1].lineno}" if lines else ""
    text = str(error)
    if any(f.name in ("staging_specialize", "_jit_trace", "jit_executor") for f in frames) or "jit/p" in text:
        return not_traceable("a call of a function compiled with ms.jit", "it is compiled for tensors with data",
                             "the plain Python function, without ms.jit", source)
    if "RowCount" in text:
        return not_traceable("the number of received rows as an argument of a MindSpore call", "routing decides it when the "
                             "kernel runs", "rows.reshape(-1, n) or mint.zeros_like(rows)", source)
    if "RouteTracer" in text:
        return not_traceable("a MindSpore call on a route", "a route is no tensor", "the rows of hpmoe.dispatch", source)
    if "src:meta" in text or "<meta>" in text:
        return not_traceable("a MindSpore call that reads values", text.splitlines()[0],
                             "mint functions, which are recorded", source)
    return None


def _output_atom(value: Any, recorder: Recorder) -> Atom:
    if isinstance(value, Tensor):
        lifted = recorder.lift(value)
        return recorder.materialize(lifted).hpmoe_atom
    kind = "a route" if isinstance(value, RouteTracer) else f"a value of type {type(value).__name__}"
    raise not_traceable(f"returning {kind}", "a Program returns tensors", "a tensor, e.g. mint.full_like(x, value); "
                        "None and containers of tensors are fine too", source="the function's return")


def _drop_unread_captures(program: Program) -> Program:
    read = {a for e in program.equations for a in e.inputs} | set(program.outputs)
    first = len(program.inputs) - len(program.captures)
    kept = [i for i, v in enumerate(program.inputs) if i < first or v in read]
    return program.replace(inputs=tuple(program.inputs[i] for i in kept),
                           input_names=tuple(program.input_names[i] for i in kept),
                           captures=tuple(program.captures[i - first] for i in kept if i >= first))
