"""Tracers that a user's function sees in a trace: tensors without data, routes, and the number of received rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import mindspore
from mindspore import Tensor

from hpmoe.ir.avals import RouteAval, Rows, ShapeDtypeStruct, as_route, fixed
from hpmoe.ir.program import Atom
from hpmoe.primitives.primitive import Primitive
from hpmoe.support.mindspore_private import FALLBACK, without_data
from hpmoe.tracing.errors import not_traceable

DATA_INSTEAD = "tensor operations (mint.where chooses), or compute this outside the function and pass it as an argument"
BRANCH_INSTEAD = "mint.where(condition, a, b), or decide outside the function and pass a Python value"
WRITE_INSTEAD = "a new value: y = x + d, mint.where(mask, v, x), or mint.cat of the parts"
ROWS_INSTEAD = "-1 in reshape, zeros_like(rows) for an array of as many rows, or leave the rows axis as it is"


class Trace(Protocol):
    """Interface of a Recorder, which its tracers call to record equations.

    Attributes:
        active: False after tracing has ended; tracers then raise.
        call, call_named: record a call of a MindSpore function, given itself or by the name of its rule.
        record: records a primitive.
        fail: raises an error with the user's line.
    """

    active: bool

    def call(self, func: object, args: Sequence[object], kwargs: dict[str, object]) -> object: ...
    def call_named(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any: ...
    def record(self, primitive: Primitive, args: tuple[object, ...], params: dict[str, object]) -> object: ...
    def fail(self, error: Exception) -> NoReturn: ...


class Refusing(Protocol):
    """Placeholder for a missing value; every use raises."""

    def hpmoe_refuse(self, what: str, why: str, instead: str) -> NoReturn: ...


def _refused_by(what: str, why: str, instead: str) -> Callable[..., NoReturn]:
    def method(self: Refusing, *args: object, **kwargs: object) -> NoReturn:
        self.hpmoe_refuse(what, why, instead)
    return method


class RowCount:
    """The number of received rows, as it shows in `rows.shape`; its value is known only when the kernel runs."""

    def __init__(self, rows: Rows, recorder: Trace):
        self.rows, self.recorder = rows, recorder

    def __repr__(self) -> str:
        return "R"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (RowCount, Rows)):
            return self.rows is getattr(other, "rows", other)
        if isinstance(other, int):
            self.hpmoe_refuse("comparing the number of received rows")
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.rows)

    def hpmoe_refuse(self, what: str, why: str = "routing decides it when the kernel runs",
                     instead: str = ROWS_INSTEAD) -> NoReturn:
        self.recorder.fail(not_traceable(what, why, instead))


Size = int | RowCount | Rows
Sizes = Size | list[Size] | tuple[Size, ...]  # a size of a shape, or all of them


def _refuse_dunders(cls: type, names: str, what: str, why: str, instead: str) -> None:
    for name in names.split():
        setattr(cls, f"__{name}__", _refused_by(what, why, instead))


_ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg abs matmul rmatmul"
_ROWS_WHY = "routing decides it when the kernel runs"
_refuse_dunders(RowCount, _ARITHMETIC, "arithmetic on the number of received rows", _ROWS_WHY, ROWS_INSTEAD)
_refuse_dunders(RowCount, "lt le gt ge bool", "branching on the number of received rows", _ROWS_WHY, ROWS_INSTEAD)
_refuse_dunders(RowCount, "int index float", "reading the number of received rows", _ROWS_WHY, ROWS_INSTEAD)


class RouteTracer:
    """The route of a traced `hpmoe.dispatch`; it goes into `grouped_matmul` and `combine`, and nowhere else."""

    def __init__(self, var: Atom, recorder: Trace):
        self.hpmoe_atom, self.hpmoe_recorder = var, recorder

    def hpmoe_record(self, primitive: Primitive, args: tuple, params: dict) -> object:
        return self.hpmoe_recorder.record(primitive, args, params)

    def hpmoe_refuse(self, what: str, why: str, instead: str) -> NoReturn:
        self.hpmoe_recorder.fail(not_traceable(what, why, instead))

    @property
    def aval(self) -> RouteAval:
        return as_route(self.hpmoe_atom.aval)

    num_tokens = property(lambda self: self.aval.num_tokens)
    top_k = property(lambda self: self.aval.num_choices)
    num_experts = property(lambda self: self.aval.num_model_experts)
    num_local_experts = property(lambda self: self.aval.num_local_experts)
    ep_size = property(lambda self: self.aval.ep_size)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith(("_", "hpmoe_")):
            raise AttributeError(name)
        self.hpmoe_refuse(f"route.{name}", "a route has no data while it is traced",
                          "combine(rows, route, weights), or route.num_local_experts, route.top_k, route.num_tokens")

    def __repr__(self) -> str:
        return "Tracer(route)"


_refuse_dunders(RouteTracer, f"{_ARITHMETIC} lt le gt ge bool int float len iter getitem setitem",
                "an operator on a route", "a route is no tensor", "the rows, the first result of hpmoe.dispatch")


class Tracer(Tensor):
    """A tensor that has a shape and a dtype and no data; MindSpore hands every call on it to the recorder."""

    hpmoe_atom: Atom
    hpmoe_aval: ShapeDtypeStruct
    hpmoe_recorder: Trace

    def hpmoe_record(self, primitive: Primitive, args: tuple, params: dict) -> object:
        return self.hpmoe_recorder.record(primitive, args, params)

    def hpmoe_refuse(self, what: str, why: str, instead: str) -> NoReturn:
        self.hpmoe_recorder.fail(not_traceable(what.replace("{aval}", repr(self.hpmoe_aval)), why, instead))

    @property
    def shape(self) -> tuple[int | RowCount, ...]:
        return tuple(RowCount(d, self.hpmoe_recorder) if isinstance(d, Rows) else d for d in self.hpmoe_aval.shape)

    @property
    def size(self) -> int:
        if any(isinstance(d, Rows) for d in self.hpmoe_aval.shape):
            self.hpmoe_refuse("the size of received rows {aval}", _ROWS_WHY, ROWS_INSTEAD)
        return math.prod(fixed(self.hpmoe_aval.shape))

    def numel(self) -> int:
        return self.size

    nelement = numel

    def __len__(self) -> int:
        if not self.hpmoe_aval.shape:
            raise TypeError("len() of a 0-d tensor")
        size = self.hpmoe_aval.shape[0]
        if isinstance(size, int):
            return size
        self.hpmoe_refuse("len of received rows {aval}", _ROWS_WHY, ROWS_INSTEAD)

    def __iter__(self) -> Iterator[Tracer]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: object) -> Tracer:
        return self.hpmoe_recorder.call_named("__getitem__", (self, index), {})

    def reshape(self, *shape: Sizes) -> Tracer:
        return self.hpmoe_recorder.call_named("Reshape", (self, *shape), {})

    view = reshape

    def broadcast_to(self, *shape: Sizes) -> Tracer:
        return self.hpmoe_recorder.call_named("BroadcastTo", (self, *shape), {})

    expand = broadcast_to

    def contiguous(self, *unused: object) -> Tracer:
        return self

    data = property(contiguous)
    value = contiguous

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memodict: object) -> Tracer:
        return self

    __array_ufunc__ = None  # NumPy then leaves `array * tracer` to the tracer

    def __array_function__(self, func: Callable[..., object], *unused: object) -> NoReturn:
        self.hpmoe_refuse(f"numpy.{func.__name__} of {{aval}}", "NumPy works on data",
                          "the mint function of this meaning")

    def __repr__(self) -> str:
        return f"Tracer({self.hpmoe_aval!r})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if spec and spec[-1] in "bcdeEfFgGnoxX%":
            self.hpmoe_refuse(f"formatting {{aval}} as a number, {spec!r}", _VALUE_WHY,
                              "print(x), which has its shape, or print what the function returns")
        return format(repr(self), spec)

    __hash__ = Tensor.__hash__


def _fallback(self: Tracer, func: object, args: Sequence[object], kwargs: dict[str, object] | None = None) -> object:
    return self.hpmoe_recorder.call(func, args, kwargs or {})


setattr(Tracer, FALLBACK, _fallback)
_VALUE_WHY = "a tracer has a shape and a dtype, its values are known only when the program runs"
_refuse_dunders(Tracer, "bool contains", "a Python branch on {aval}", _VALUE_WHY, BRANCH_INSTEAD)
_refuse_dunders(Tracer, "int float index complex round", "turning {aval} into a number", _VALUE_WHY, DATA_INSTEAD)
_refuse_dunders(Tracer, "array reduce_ex", "reading the values of {aval}", _VALUE_WHY, DATA_INSTEAD)
for _name in "asnumpy numpy item tolist data_ptr get_bytes to_dlpack storage untyped_storage init_data to_coo to_csr " \
        "equal allclose is_contiguous stride storage_offset".split():
    setattr(Tracer, _name, _refused_by(f".{_name}() of {{aval}}", _VALUE_WHY, DATA_INSTEAD))
_refuse_dunders(Tracer, "setitem iadd isub imul itruediv ifloordiv imod", "an in-place write to {aval}",
                "a Program is pure", WRITE_INSTEAD)
for _name in "assign_value assign_value_cpp set_ itemset set_dtype requires_grad_ register_hook offload move_to " \
        "inplace_update fill fills resize cauchy isreal".split():
    setattr(Tracer, _name, _refused_by(f".{_name}() on {{aval}}", "a Program is pure", WRITE_INSTEAD))


def make_tracer(atom: Atom, aval: ShapeDtypeStruct, recorder: Trace) -> Tracer:
    """Returns a tracer for `atom`, whose abstract value is `aval` (a literal has no dtype of its own)."""
    sizes = tuple(d if isinstance(d, int) else 1 for d in aval.shape)
    tracer = without_data(Tracer, sizes, getattr(mindspore, "bool_" if aval.dtype == "bool" else aval.dtype))
    tracer.hpmoe_atom, tracer.hpmoe_aval, tracer.hpmoe_recorder = atom, aval, recorder
    return tracer


# What MindSpore hands a rule beside its tensors.
Operand = Tracer | bool | int | float
Axes = int | list[int] | tuple[int, ...] | None
