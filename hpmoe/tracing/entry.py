"""trace: runs a function on tracers and gives back its Program."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import optree
from mindspore import Parameter, Tensor

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Atom, Program, Var, live_equations
from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.support.dtypes import TENSORS
from hpmoe.support.errors import ArgumentError, TraceError, check_argument, is_int, kind_of, tensor_advice
from hpmoe.support.trees import Function, PyTree, unflatten
from hpmoe.tracing.draws import refusing_draws, states
from hpmoe.tracing.errors import explain, not_traceable, short_path
from hpmoe.tracing.pynative import recording
from hpmoe.tracing.recognize import recognize
from hpmoe.tracing.recorder import Recorder, tensor_aval
from hpmoe.tracing.tracer import RouteTracer


def trace(f: Function, *args: object, mesh: Mesh | None = None, **kwargs: object) -> Program:
    """Runs `f` once on abstract tensors and records what it computes; no tensor gets memory.

    Args:
        f: a pure function of the tensors of one rank. It may call mint, ops, Tensor methods, operators, cells, other
            functions and hpmoe's primitives.
        args, kwargs: pytrees of MindSpore tensors, NumPy arrays and `hpmoe.ShapeDtypeStruct`; other leaves are passed on
            unchanged.
        mesh: the ranks that run `f` together; one by default.

    Returns:
        The Program. Tensors that `f` closes over are its last inputs, `Program.captures`.

    Raises:
        TraceError: `f` does something a Program cannot record; the text has the line and what to write instead.
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> from mindspore import mint
        >>> from hpmoe.ir.avals import ShapeDtypeStruct
        >>> x, w = ShapeDtypeStruct((4, 8), "float32"), ShapeDtypeStruct((8, 3), "float32")
        >>> print(trace(lambda x, w: mint.nn.functional.silu(x @ w), x, w))
        # <lambda>
        { lambda x:f32[4,8] w:f32[8,3]
          let a:f32[4,3] = matmul x w
              b:f32[4,3] = silu a
          in (b,) : f32[4,3] }
    """
    return trace_with_tree(f, args, mesh, kwargs)[0]


def trace_with_tree(f: Function, args: Sequence[object], mesh: Mesh | None = None,
                    kwargs: Mapping[str, object] | None = None) -> tuple[Program, optree.PyTreeSpec]:
    """Traces like `trace`, and also returns the tree of `f`'s result, whose leaves are the Program's outputs in order."""
    check_argument(callable(f), "hpmoe.trace", "f", f"a {type(f).__name__}", "a function of tensors")
    arguments: PyTree = (tuple(args), dict(kwargs or {}))
    paths, leaves, tree = optree.tree_flatten_with_path(arguments)
    names = argument_names(f, paths)
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, np.ndarray):
            check_argument(str(leaf.dtype) in TENSORS, "hpmoe.trace", name, f"of dtype {leaf.dtype}",
                           f"of a dtype of MindSpore: {', '.join(TENSORS)}")
        elif advice := tensor_advice(name, leaf):
            check_argument(isinstance(leaf, np.generic), "hpmoe.trace", name, kind_of(leaf), "a mindspore.Tensor", advice)
    given = [leaf if (aval := argument_aval(leaf)) is None else aval for leaf in leaves]
    mesh, before = as_mesh("hpmoe.trace", mesh), states()
    traced = _trace_once(f, names, given, tree, mesh, lambda recorder: contextlib.nullcontext())
    return traced if states() == before else _trace_once(f, names, given, tree, mesh, refusing_draws)


def _trace_once(f: Function, names: Sequence[str], given: Sequence[object], tree: optree.PyTreeSpec, mesh: Mesh,
                watched: Callable[[Recorder], contextlib.AbstractContextManager[None]]) -> tuple[Program, optree.PyTreeSpec]:
    recorder = Recorder(mesh)
    args = [recorder.input(leaf) if isinstance(leaf, ShapeDtypeStruct) else leaf for leaf in given]
    named = [name for name, leaf in zip(names, given, strict=True) if isinstance(leaf, ShapeDtypeStruct)]
    with recording(recorder):
        with watched(recorder):
            given_args, given_kwargs = unflatten(tree, args)
            result = _run(f, given_args, given_kwargs, recorder)
        results, out_tree = optree.tree_flatten(result)
        outputs = *(_output_atom(f, r, recorder) for r in results), *(atom for atom, _ in recorder.reports)
    program = recognize(Program(
        name=function_name(f), inputs=(*recorder.inputs, *recorder.captures),
        input_names=(*named, *("" for _ in recorder.captures)),
        equations=live_equations(recorder.builder.equations, outputs), outputs=outputs, ep_size=mesh.num_ranks,
        reports=tuple(report for _, report in recorder.reports)))
    return _with_captures(program, recorder.captures), out_tree


def argument_aval(leaf: object) -> ShapeDtypeStruct | None:
    """Returns the abstract value of an argument's leaf, or None for one that is no tensor."""
    if isinstance(leaf, ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, Tensor):
        return tensor_aval(leaf)
    if isinstance(leaf, np.ndarray):
        return ShapeDtypeStruct(leaf.shape, str(leaf.dtype))
    return None


def function_name(f: Function) -> str:
    while hasattr(f, "func"):
        f = f.func
    return getattr(f, "__name__", type(f).__name__)


def argument_names(f: Function, paths: Sequence[tuple[PyTree, ...]]) -> list[str]:
    """Returns `x` for the argument x, `x_key_0` for a leaf inside it; distinct. Paths are those of (args, kwargs)."""
    function = getattr(f, "construct", f)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    names: list[str] = []
    for is_keyword, index, *keys in paths:
        if is_keyword:
            head = index
        else:
            head = positional[index] if index < len(positional) else f"{rest}_{index - len(positional)}"
        names.append(_distinct("_".join([head, *map(str, keys)]), names))
    return names


def _run(f: Function, args: tuple[object, ...], kwargs: dict[str, object], recorder: Recorder) -> PyTree:
    try:
        result = f(*args, **kwargs)
    except (TraceError, ArgumentError):
        raise
    except Exception as error:
        if recorder.pending is not None:
            raise recorder.pending from error
        explained = explain(error) or _shape_for_tensor(f, args, kwargs)
        if explained is None:
            raise
        raise explained from error
    if recorder.pending is not None:
        raise recorder.pending
    return result


def _shape_for_tensor(f: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> ArgumentError | None:
    """Returns the error of a failed function that was given sizes instead of a tensor, or None."""
    for path, value in (*(((False, i), x) for i, x in enumerate(args)), *(((True, k), x) for k, x in kwargs.items())):
        if isinstance(value, (tuple, list)) and value and all(is_int(d, 0, 2**63) for d in value):
            name = argument_names(f, [path])[0]
            return ArgumentError(f"hpmoe.trace: {name} is {value!r}, which {function_name(f)} uses as a tensor; it must be "
                                 f"a mindspore.Tensor, or hpmoe.ShapeDtypeStruct({tuple(value)!r}, \"float32\").")
    return None


def _output_atom(f: Function, value: object, recorder: Recorder) -> Atom:
    if isinstance(value, Tensor):
        return recorder.materialize(recorder.lift(value)).hpmoe_atom
    kind = "a route" if isinstance(value, RouteTracer) else f"a value of type {type(value).__name__}"
    code = getattr(f, "__code__", None)
    raise not_traceable(f"returning {kind}", "a Program returns tensors",
                        "a tensor, e.g. mint.full_like(x, value), or None, or a container of tensors",
                        f"{short_path(code.co_filename)}:{code.co_firstlineno}" if code else function_name(f))


def _with_captures(program: Program, captures: Mapping[Var, Tensor]) -> Program:
    """Names the captures that are read, and drops the others from the inputs."""
    read = {a for e in program.equations for a in e.inputs} | set(program.outputs)
    inputs = [v for v in program.inputs if v not in captures or v in read]
    kept = [captures[v] for v in inputs if v in captures]
    names = list(program.input_names[:len(inputs) - len(kept)])
    for index, tensor in enumerate(kept):
        own = tensor.name if isinstance(tensor, Parameter) and tensor.name else f"captured_{index}"
        names.append(_distinct(own, names))
    return program.replace(inputs=tuple(inputs), input_names=tuple(names), captures=tuple(kept))


def _distinct(name: str, taken: Sequence[str]) -> str:
    """Returns `name` as an identifier that is not among `taken`."""
    base = re.sub(r"\W", "_", name)
    return next(n for n in (base, *(f"{base}_{i}" for i in range(1, len(taken) + 2))) if n not in taken)
