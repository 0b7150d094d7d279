"""All that hpmoe uses of MindSpore beyond what MindSpore documents: the one file to change for another MindSpore.

hpmoe.support.mindspore_checks has a check of each that it does what it is used for; `hpmoe doctor` prints what they find.
A name that MindSpore lacks raises where it is used, not where hpmoe is imported.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import mindspore as ms
from mindspore import Generator, Tensor, mint, nn, ops

from hpmoe.support.trees import Function


class _Missing(type):
    """The class of what stands for a name that MindSpore lacks: any use of it raises."""

    def _refuse(cls) -> NoReturn:
        raise ImportError(f"MindSpore {ms.__version__} has no {cls.__name__}, which hpmoe uses; "
                          "hpmoe doctor prints what does not work without it")

    def __call__(cls, *unused: object, **unused_too: object) -> NoReturn:
        cls._refuse()

    def __instancecheck__(cls, value: object) -> bool:
        cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        return cls._refuse() if not name.startswith("__") else type.__getattribute__(cls, name)


def _private(path: str) -> Any:
    """Returns the object at a path below `mindspore`."""
    try:
        return operator.attrgetter(path)(ms)
    except AttributeError:
        return _Missing(f"mindspore.{path}", (), {})


_executor = _private("graph.api._pynative_executor")
_jit_context = _private("graph.jit_context.jit_context")
_jit_trace = _private("graph.jit_trace")
_type_id_to_type = _private("_c_expression.typing.type_id_to_type")
_method_call = _private("_c_expression.TensorOverloadCall")
Differentiable = _private("common._grad_function._Function")  # `forward` and `backward` of a subclass are its gradient
without_fallback = _private("_c_expression.NoFallbackGuard")  # a context in which MindSpore runs calls on tensors itself


def _callers() -> Iterator[types.FrameType]:
    """Yields the frames of the functions being called now, the innermost first."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def bfloat16() -> type:
    """Returns NumPy's bfloat16 type, of two bytes."""
    return _private("_c_expression.np_dtypes.bfloat16")


# Gradients.

def takes_gradient() -> bool:
    """Returns True while MindSpore takes a gradient of what is called now."""
    return _executor.grad_flag()


def set_takes_gradient(flag: bool) -> None:
    _executor.set_grad_flag(flag)


@contextlib.contextmanager
def taking_gradient() -> Iterator[None]:
    """Context in which checks for a gradient find that one is taken."""
    before = takes_gradient()
    set_takes_gradient(True)
    try:
        yield
    finally:
        set_takes_gradient(before)


def recomputes() -> bool:
    """Returns True while a recomputed forward pass runs, the second one of its call."""
    return any(frame.f_code.co_name in ("bprop", "recompute_function")
               and frame.f_globals.get("__name__") == "mindspore.common.recompute" for frame in _callers())


def forget_gradient() -> None:
    """Ends a gradient that an exception left; MindSpore would misread every later index."""
    _executor.clear_res()


def end_gradients_at_exceptions() -> None:
    """Makes MindSpore end a gradient at an exception in the function that is differentiated, as it ends a compilation.

    Without this call MindSpore stays inside that gradient, and the next gradient of a slice of an empty tensor divides by
    zero in C++, which kills the process.
    """
    module = sys.modules.get("mindspore.ops.composite.base")
    run = getattr(module, "_pynative_forward_run", None)
    if module is None or run is None or hasattr(run, "__wrapped__"):
        return

    @functools.wraps(run)
    def ended_at_exceptions(*args: object, **kwargs: object) -> object:
        try:
            return run(*args, **kwargs)
        except BaseException:
            if gradient_depth() == 0:
                forget_gradient()
            raise
    setattr(module, run.__name__, ended_at_exceptions)


def graph_takes_gradient() -> bool:
    """Returns True if a gradient is taken of the graph being compiled."""
    return _executor.requires_grad()


def gradient_depth() -> int:
    """Counts the gradients that enclose this call; MindSpore's flag would stay set after an exception inside one."""
    return sum(frame.f_code.co_name == "_pynative_forward_run" for frame in _callers())


def has_gradient(tensor: Tensor) -> bool:
    """Returns True if a tensor is differentiated, or computed from one that is."""
    return bool(tensor._requires_grad)


def is_computed(tensor: Tensor) -> bool:
    """Returns True if a tensor is the result of a differentiable computation, whose history ends with its gradient."""
    return has_gradient(tensor) and not tensor._is_leaf


def wait_for_calls() -> None:
    """Waits until all calls so far have left MindSpore's queue for the device."""
    _executor.sync()


# Calls on tensors.

FALLBACK = "__fallback__"  # the method that MindSpore hands every call on a tensor to, where its class has one
# What an old-style primitive keeps to itself instead of passing it.
_ATTRIBUTES = {"Unstack": ("axis",), "Stack": ("axis",), "Sort": ("axis", "descending")}


def without_data(cls: type[Tensor], shape: tuple[int, ...], dtype: object) -> Tensor:
    """Returns a tensor of a class of tensors that has no memory for its elements."""
    return Tensor._make_subclass(cls, mint.empty(shape, dtype=dtype, device="meta"))


def has_no_data(tensor: Tensor) -> bool:
    """Returns True if a tensor has no memory, or was computed from one that MindSpore copied without a report."""
    try:
        wait_for_calls()
    except RuntimeError as error:
        if "src:meta" in str(error):
            return True
        raise
    return getattr(tensor, "is_meta", False)


def read_call(func: object, args: Sequence[Any]) -> tuple[str, tuple[Any, ...], bool]:
    """Returns (name, arguments, True for a method) of a call that MindSpore passes to `__fallback__`."""
    name = getattr(func, "name", None) or getattr(func, "__name__", str(func))
    if len(args) == 3 and args[1] == name and isinstance(args[2], tuple):
        args = (*args[2], *(getattr(args[0], a) for a in _ATTRIBUTES.get(name, ())))
    return name, tuple(args), isinstance(func, _method_call)


def dtype_of_number(number: int) -> Any:
    """Returns MindSpore's type of a number that calls receive as an int."""
    return _type_id_to_type(number)


# Random numbers.

STEP = "_step"  # the method that every draw from a Generator goes through


def seed_and_offset(generator: Generator) -> tuple[Tensor, Tensor]:
    """Returns the result of `_step` without a step."""
    return generator._seed, generator._offset


def is_idle_dropout(frame: types.FrameType) -> bool:
    """Returns True if a caller of `_step` is a dropout that drops nothing."""
    return frame.f_locals.get("training") is False


def has_hidden_state(primitive: ops.Primitive) -> bool:
    """Returns True if a primitive keeps a state of its own, as random ones do."""
    return "side_effect_hidden" in primitive.attrs


# Compiled graphs.

def records_calls() -> bool:
    """Returns True while `ms.jit(capture_mode="trace")` records what is called now."""
    return _jit_context() is not None


def end_recording() -> None:
    """Ends the current recording of `ms.jit(capture_mode="trace")`; call it before an exception leaves the function.

    MindSpore is unusable after an exception that leaves a recording open. Does nothing in a nested recording.
    """
    recording = _jit_trace._trace_jit_context
    if not recording.is_nested():  # a compilation that the recording is part of ends with the exception
        phase = recording.phase
        _jit_trace._jit_trace_end(Tensor(0.0))
        _jit_trace._trace_compile_cache.discard(phase)  # the next call records again


def forgetting_graph() -> Callable[[], None]:
    """Returns a function that makes MindSpore compile the present graph once more."""
    for frame in _callers():
        if frame.f_code.co_name == "compile" and frame.f_globals.get("__name__") == "mindspore.graph.api":
            names = frame.f_locals
            graphs = names["obj"].compile_cache if "obj" in names else frame.f_globals["ms_compile_cache"]
            return functools.partial(graphs.discard, names["phase"])
    return lambda: None


def set_num_inputs(primitive: ops.Primitive, number: int) -> None:
    primitive.add_prim_attr("inputs_num", number)


_whole_cells = _private("rewrite.common.namespace._subtree_black_list")
_is_rewritten = _private("rewrite.common.namespace.is_subtree")
_whole_functions = _private("rewrite.parsers.assign_parser.AssignParser._function_parse_black_list")


class _Any:
    """Equal to all instances of a class."""

    def __init__(self, kind: type):
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.kind)

    def __hash__(self) -> int:
        return hash(self.kind)


def keep_whole(kind: type) -> type:
    """Makes level O1 of mixed precision, which rewrites sources, take a class of Cells or functions as it is."""
    is_cell = issubclass(kind, nn.Cell)
    known = _whole_cells if is_cell else _whole_functions
    if isinstance(known, list):
        known.append(kind if is_cell else _Any(kind))
    return kind


def rewrite_again() -> None:
    """Undoes the last `keep_whole` of a Cell, and that of a function."""
    del _whole_cells[-1:], _whole_functions[-1:]


def is_rewritten(value: object) -> bool:
    """Returns True if rewriting of sources replaces a Cell or a function."""
    return _is_rewritten(value) if isinstance(value, nn.Cell) else value not in list(_whole_functions)


class AskedByCompiler(ops.PrimitiveWithInfer):
    """Primitive whose result the compiler gets from `__infer__` instead of an operator."""

    def __init__(self, name: str):
        super().__init__(name)
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)


class Eager(AskedByCompiler):
    """Calls a function in PyNative; a compiled graph has a constant bool in its place."""

    def __init__(self, name: str, function: Callable[..., bool], in_graph: bool):
        super().__init__(name)
        self.function, self.in_graph = function, in_graph

    def __infer__(self, *args: object) -> dict[str, object]:
        return {"shape": (), "dtype": ms.bool_, "value": self.in_graph}

    def __call__(self, *args: object) -> bool:
        return self.function(*args)


class WithGradient:
    """Base of a primitive whose gradient, for the compiler, is the function that `find_rule()` returns."""

    find_rule: Callable[[], Function]

    def get_bprop(self) -> Function:
        return self.find_rule()
