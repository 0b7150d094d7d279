"""Checks of the installed MindSpore: whether each private name still does what hpmoe uses it for."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Generator, Tensor, mint, nn, ops
from mindspore.mint.nn import functional

from hpmoe.support import mindspore_private as private
from hpmoe.support.trees import Function

# What a check is of -> what does not work without it, and the check.
CHECKS: dict[str, tuple[str, Callable[[], bool]]] = {}


def faults() -> dict[str, str]:
    """Returns the faults of CHECKS with their consequences; empty if MindSpore is as hpmoe uses it."""
    return {names: _fault(loses, check) for names, (loses, check) in CHECKS.items()}


def _number(tensor: Any) -> float:
    """Returns the number of a one-element tensor, which MindSpore types as Any."""
    return float(tensor.asnumpy().item())


def _fault(loses: str, check: Callable[[], bool]) -> str:
    try:
        why = "" if check() else "it behaves differently"
    except Exception as error:  # another MindSpore may raise any error
        why = f"{type(error).__name__}: {error}"
    return why and f"{loses} would not work: {why}"


def _relied_on(names: str, loses: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    def add(check: Callable[[], bool]) -> Callable[[], bool]:
        CHECKS[names] = loses, check
        return check
    return add


# Gradients.


@_relied_on("_pynative_executor: grad_flag, set_grad_flag, clear_res, sync", "gradients of staged functions")
def _flag_says_that_a_gradient_is_taken() -> bool:
    flags = [private.takes_gradient()]
    grad = ms.grad(lambda x: flags.append(private.takes_gradient()) or x * x)(Tensor(3.0))
    private.set_takes_gradient(True)
    flags.append(private.takes_gradient())
    private.forget_gradient()
    private.set_takes_gradient(False)
    private.wait_for_calls()
    return [*flags, private.takes_gradient(), _number(grad)] == [False, True, True, False, 6.0]


@_relied_on("_Function", "gradients of staged functions")
def _backward_is_what_a_gradient_runs() -> bool:
    class Doubled(private.Differentiable):
        @staticmethod
        def forward(ctx: Any, factor: float, x: Tensor) -> Any:
            ctx.factor = factor
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return None, grad * ctx.factor

    return _number(ms.grad(lambda x: Doubled.apply(7.0, x))(Tensor(3.0))) == 7


@_relied_on("_pynative_forward_run", "the refusal of gradients of gradients")
def _frames_count_gradients() -> bool:
    depths: list[int] = [private.gradient_depth()]
    inner = ms.grad(lambda x: depths.append(private.gradient_depth()) or x * x)
    ms.grad(lambda x: depths.append(private.gradient_depth()) or inner(x))(Tensor(3.0))
    return depths[:3] == [0, 1, 2]


@_relied_on("composite.base: _pynative_forward_run", "gradients after an error in another gradient")
def _exceptions_end_gradients() -> bool:
    private.end_gradients_at_exceptions()

    def fails(x: Tensor) -> Tensor:
        raise ArithmeticError

    with contextlib.suppress(ArithmeticError):
        ms.grad(fails)(Tensor(3.0))
    return not private.takes_gradient()


@_relied_on("common.recompute: bprop, recompute_function", "the counts of tokens under recompute(), which would be doubled")
def _second_forward_passes_are_known() -> bool:
    seen: list[bool] = []

    class Square(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            seen.append(private.recomputes())
            return x * x

    for reentrant in (True, False):
        cell = Square()
        cell.recompute(use_reentrant=reentrant)
        ms.grad(cell)(Tensor(3.0))
    return seen == [False, True] * 2


@_relied_on("Tensor: _requires_grad, _is_leaf", "functions that close over what a gradient goes through")
def _tensors_know_their_history() -> bool:
    seen: list[tuple[bool, bool]] = []

    def f(x: Tensor) -> Tensor:
        y = x * x
        seen.extend((private.has_gradient(t), private.is_computed(t)) for t in (x, y, Tensor(1.0)))
        return y

    ms.grad(f)(Tensor(3.0))
    return seen == [(True, False), (True, True), (False, False)]


# Calls on tensors.


class _Seen(Tensor):
    """A tensor that notes its calls."""


def _calls(f: Function) -> list[tuple[Any, tuple[Any, ...]]]:
    """Returns the arguments of `__fallback__` of a tensor without data while `f` uses it."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    setattr(_Seen, private.FALLBACK, lambda self, func, args, kwargs=None: found.append((func, tuple(args))))
    f(private.without_data(_Seen, (2, 3), ms.float32))
    return found


@_relied_on("Tensor: __fallback__, _make_subclass, is_meta; primitives' arguments; TensorOverloadCall", "tracing")
def _calls_are_handed_over() -> bool:
    function, method, primitive = (private.read_call(*_calls(f)[0]) for f in (
        lambda x: mint.matmul(x, x), lambda x: x.matmul(x), lambda x: ops.Unstack(1)(x)))
    is_known = [name == "MatMulExt" and (len(args), of_method) for name, args, of_method in (function, method)]
    has_axis = primitive[0] == "Unstack" and primitive[1][1:] == (1,)
    return has_axis and is_known == [(2, False), (2, True)] and private.has_no_data(function[1][0])


@_relied_on("NoFallbackGuard; Parameter.__fallback__", "tracing in one thread beside Parameters in another")
def _fallback_can_be_left_out() -> bool:
    names: list[str] = []

    def run(self: Any, func: Any, args: Any, kwargs: Any = None) -> Any:
        names.append(private.read_call(func, args)[0])
        with private.without_fallback():
            return func(*args, **(kwargs or {}))

    setattr(ms.Parameter, private.FALLBACK, run)
    try:
        result = mint.matmul(ms.Parameter(Tensor([2.0])), Tensor([3.0]))
    finally:
        delattr(ms.Parameter, private.FALLBACK)
    return names == ["MatMulExt"] and float(result) == 6


@_relied_on("typing.type_id_to_type", "tracing of calls that are given a dtype")
def _numbers_stand_for_dtypes() -> bool:
    (_, args), = _calls(lambda x: mint.zeros_like(x, dtype=ms.float16))
    return private.dtype_of_number(args[1]) == ms.float16


@_relied_on("np_dtypes.bfloat16", "bfloat16")
def _bfloat16_is_of_numpy() -> bool:
    array = Tensor([1.5], ms.bfloat16).asnumpy()
    return array.dtype == np.dtype(private.bfloat16()) and array.itemsize == 2 and float(array.astype(np.float32)[0]) == 1.5


# Random numbers.


class _Drawn(Exception):
    """Ends a draw before it reaches a device."""


def _is_idle_draw(draw: Function) -> bool | None:
    """Returns the report about a caller of `_step`, or None if `_step` is not called."""
    try:
        draw()
    except _Drawn as drawn:
        return drawn.args[0]
    return None


@_relied_on("Generator: _step, _seed, _offset; primitives' side_effect_hidden", "the refusal of draws while tracing")
def _draws_are_seen() -> bool:
    def step(self: Generator, *args: Any) -> Any:
        raise _Drawn(private.is_idle_dropout(sys._getframe(1)))

    original, x = vars(Generator)[private.STEP], Tensor([1.0, 2.0])
    setattr(Generator, private.STEP, step)
    try:
        idle = [_is_idle_draw(lambda t=t: functional.dropout(x, 0.5, training=t)) for t in (True, False)]
        idle.append(_is_idle_draw(lambda: mint.randn(2)))
    finally:
        setattr(Generator, private.STEP, original)
    generator = Generator()
    before = [int(x) for x in private.seed_and_offset(generator)]
    stepped = [int(x) for x in original(generator, Tensor(4, ms.int64))]
    hidden = [private.has_hidden_state(primitive) for primitive in (ops.StandardNormal(), ops.ReLU())]
    return (idle, hidden, stepped) == ([False, True, False], [True, False], before)


# Compiled graphs.


class _Asked(private.AskedByCompiler):
    def __init__(self) -> None:
        super().__init__("hpmoe_check")
        self.asked: list[Any] = []

    def __infer__(self, x: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((x["value"], private.graph_takes_gradient(), private.forgetting_graph()))
        return {"shape": (), "dtype": None, "value": x["value"]}


def _five(x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (dout * 5,)


class _Tripled(private.WithGradient, ops.Custom):
    """An operator in Python whose gradient is said to be 5."""

    def __init__(self) -> None:
        super().__init__(lambda x: x * np.float32(3), lambda shape: shape, lambda dtype: dtype, "pyfunc")
        private.set_num_inputs(self, 1)
        self.find_rule = lambda: _five


@_relied_on("jit_context", "the refusal of ms.jit(capture_mode=\"trace\")")
def _recording_is_seen() -> bool:
    seen = [private.records_calls()]
    recorded = ms.jit(lambda x: seen.append(private.records_calls()) or x * 2, capture_mode="trace")
    thread = threading.Thread(target=recorded, args=[Tensor([1.0])])  # MindSpore reads the source of each caller
    thread.start()
    thread.join()
    return seen[:2] == [False, True]


@_relied_on("jit_trace: _jit_trace_end, _trace_jit_context, _trace_compile_cache", "MindSpore after that refusal")
def _recording_is_ended() -> bool:
    seen: list[bool] = []

    def refused(x: Tensor) -> Tensor:
        private.end_recording()
        seen.append(private.records_calls())
        raise ArithmeticError

    def record() -> None:
        for _ in range(2):  # a second call records again
            with contextlib.suppress(Exception):
                ms.jit(refused, capture_mode="trace")(Tensor([1.0]))

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    return seen == [False, False]


@_relied_on("constexpr_prim; inputs_num; get_bprop; requires_grad; compile_cache, ms_compile_cache", "compiled graphs")
def _graphs_ask_and_are_forgotten() -> bool:
    asked, tripled = _Asked(), _Tripled()

    @ms.jit
    def f(x: Tensor) -> Any:
        asked("word")
        return tripled(x)

    x = Tensor([2.0])
    value, count = _number(f(x)), len(asked.asked)
    f(x)
    kept = len(asked.asked) == count
    asked.asked[-1][2]()
    f(x)
    again = len(asked.asked) > count
    grad = _number(ms.grad(f)(x))
    flags = asked.asked[0][1], asked.asked[-1][1]
    return (value, grad, kept, again, flags, asked.asked[0][0]) == (6, 5, True, True, (False, True), "word")


class _Whole(nn.Cell):
    pass


@_relied_on("rewrite: _subtree_black_list, is_subtree, _function_parse_black_list", "mixed precision at level O1")
def _rewriting_keeps_cells() -> bool:
    before = private.is_rewritten(_Whole()), private.is_rewritten(_five)
    private.keep_whole(_Whole)
    private.keep_whole(type(_five))
    after = private.is_rewritten(_Whole()), private.is_rewritten(_five)
    private.rewrite_again()
    return (before, after) == ((True, True), (False, False))
