"""Recorder: the state of one trace. Turns MindSpore calls into equations, through the table of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from mindspore import Parameter, Tensor

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation, Literal, Report, Var
from hpmoe.machines.machine import Mesh
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.shape import dtype_param
from hpmoe.support.dtypes import widen
from hpmoe.support.errors import ArgumentError, TraceError
from hpmoe.support.mindspore_private import (
    dtype_of_number,
    gradient_depth,
    has_gradient,
    has_no_data,
    read_call,
    takes_gradient,
)
from hpmoe.tracing.calls import CALLS, find_call
from hpmoe.tracing.errors import not_traceable, user_source
from hpmoe.tracing.tracer import Operand, RouteTracer, RowCount, Tracer, make_tracer

_LIFTED = (Tensor, np.ndarray)


def tensor_aval(tensor: Tensor) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(tuple(int(d) for d in tensor.shape), str(tensor.dtype).lower())


class Recorder:
    """Collects the equations of one trace.

    Attributes:
        mesh: ranks of the trace, which routes get.
        pending: the first error raised inside a MindSpore call, which may reach the user in another form.
        inputs: variables of the arguments, in order.
        captures: variables of tensors that the function reads and that are no arguments.
        reports: values to check after each call, with the functions that check them; see `Program.reports`.
    """

    def __init__(self, mesh: Mesh):
        self.mesh, self.builder, self.active = mesh, Builder(), True
        self.gradient_depth = gradient_depth() if takes_gradient() else None
        self.pending: Exception | None = None
        self.inputs: list[Var] = []
        self.captures: dict[Var, Tensor] = {}
        self.reports: list[tuple[Atom, Report]] = []
        self._captured: dict[int, Var] = {}
        self._routes: dict[tuple[object, ...], RouteTracer] = {}

    def fail(self, error: Exception) -> NoReturn:
        self.pending = self.pending or error
        raise error

    def input(self, aval: ShapeDtypeStruct) -> Tracer:
        var = Var(aval)
        self.inputs.append(var)
        return make_tracer(var, aval, self)

    # What a MindSpore call becomes.

    def call(self, func: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
        name, operands, is_method = read_call(func, args)
        if is_method and f"Tensor.{name}" in CALLS:
            name = f"Tensor.{name}"
        return self.call_named(name, operands, kwargs)

    def call_named(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        try:
            self._check_usable(name)
            rule = find_call(name)
            args = tuple(self.lift(a) for a in args)
            return rule(self, *args, **{k: self.lift(v) for k, v in kwargs.items()})
        except (TraceError, ArgumentError) as error:
            self.fail(error)

    def _check_usable(self, name: str) -> None:
        if not self.active:
            raise not_traceable(f"{name} on a tracer of a finished trace",
                                "the function kept a traced value beyond its call",
                                "return the value instead of storing it")
        if takes_gradient() and (self.gradient_depth is None or gradient_depth() > self.gradient_depth):
            raise not_traceable("ms.grad or ms.value_and_grad inside the function",
                                f"the gradient through {name} would silently be zero",
                                "ms.grad of the staged callable, or hpmoe.rewriting.vjp(hpmoe.trace(f, *args))")

    def lift(self, value: object) -> Any:
        """Converts tensors to tracers, also inside lists and tuples; returns everything else unchanged."""
        if isinstance(value, Tracer):
            if value.hpmoe_recorder is not self:
                raise not_traceable("a tracer of another trace", "that trace is finished, or this one runs inside it",
                                    "pass the value as an argument")
            return value
        if isinstance(value, np.ndarray):
            return self.capture(Tensor(value))
        if isinstance(value, Tensor):
            return self.capture(value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, _LIFTED) for v in value):
            return type(value)(self.lift(v) for v in value)
        return value

    def capture(self, tensor: Tensor) -> Tracer:
        """Returns a tracer for a closed-over tensor; a 0-d constant becomes a literal, unless it is differentiated."""
        if has_no_data(tensor):
            raise not_traceable("a call MindSpore did not report", "its result has no values and no equation",
                                "the mint function of the same meaning")
        aval = tensor_aval(tensor)
        if aval.shape == () and not isinstance(tensor, Parameter) and not has_gradient(tensor):
            return make_tracer(Literal(widen(tensor.asnumpy()).item()), aval, self)
        if id(tensor) not in self._captured:
            var = self._captured[id(tensor)] = Var(aval)
            self.captures[var] = tensor
        return make_tracer(self._captured[id(tensor)], aval, self)

    # Equations.

    def record(self, primitive: Primitive, args: tuple[object, ...], params: dict[str, object]) -> object:
        """Adds the equation `primitive[params] args`; returns tracers of its outputs. `Primitive.__call__` calls it."""
        try:
            self._check_usable(primitive.name)
            operands = [self.lift(a) for a in args]
            if primitive.name == "route":
                return self._route(primitive, *operands, **params)
            return self(primitive, *operands, **params)
        except (TraceError, ArgumentError) as error:
            self.fail(error)

    def _route(self, primitive: Primitive, *operands: Operand, **params: object) -> RouteTracer:
        """Returns the route of some ids and options, made once: rows of two dispatches by the same ids correspond."""
        key = (*map(self.atom, operands), *params.items())
        if key not in self._routes:
            mesh: dict[str, object] = {"ep_size": self.mesh.num_ranks}
            if self.mesh.node_size is not None:
                mesh["node_size"] = self.mesh.node_size
            if self.mesh.tp > 1:
                mesh["tp_size"] = self.mesh.tp
            options = {"num_local_experts": params.pop("num_local_experts"), **mesh, **params}
            self._routes[key] = self(primitive, self._not_dequantized(operands[0]), *operands[1:], **options)
        return self._routes[key]

    def _not_dequantized(self, ids: Tracer) -> Tracer:
        """Returns the int32 ids that int64 ids were before a cast, or the ids themselves."""
        made_by = self.maker(getattr(ids, "hpmoe_atom", None))
        is_dequantized = made_by is not None and made_by.primitive.name == "cast" and ids.hpmoe_aval.dtype == "int64"
        source = made_by.inputs[0] if made_by is not None and is_dequantized else None
        return self._wrap(source) if isinstance(source, Var) and source.aval.dtype == "int32" else ids

    def maker(self, atom: Atom | None) -> Equation | None:
        """Returns the equation that an atom is an output of, or None."""
        return next((e for e in self.builder.equations if atom in e.outputs), None)

    def __call__(self, primitive: Primitive, *operands: object, **params: object) -> Any:
        atoms = [self.atom(a, f"operand {i} of {primitive.name}") for i, a in enumerate(operands)]
        out = self.builder.add(primitive, *atoms, source=user_source(), **params)
        return tuple(map(self._wrap, out)) if isinstance(out, tuple) else self._wrap(out)

    def atom(self, value: object, what: str = "an operand") -> Atom:
        if isinstance(value, (Tracer, RouteTracer)):
            return value.hpmoe_atom
        if isinstance(value, (bool, int, float, np.generic)):
            return Literal(widen(np.asarray(value)).item() if isinstance(value, np.generic) else value)
        if isinstance(value, RowCount):
            value.hpmoe_refuse("computing with the number of received rows")
        kind = "None" if value is None else f"a value of type {type(value).__name__}"
        raise not_traceable(f"{kind} as {what}", "equations take tensors, routes and numbers",
                            "a mindspore.Tensor")

    def materialize(self, value: Operand) -> Tracer:
        """Returns `value` as a variable: a number or a literal becomes an array."""
        if isinstance(value, Tracer) and isinstance(value.hpmoe_atom, Literal):
            return self(broadcast_to, value.hpmoe_atom.value, shape=(), **dtype_param(value.hpmoe_aval.dtype, "float32"))
        return value if isinstance(value, Tracer) else self(broadcast_to, value, shape=())

    def dtype_name(self, dtype: object) -> str | None:
        """Returns the name of a dtype given as MindSpore's type, its number or a string."""
        if dtype is None or isinstance(dtype, str):
            return dtype
        return str(dtype_of_number(dtype) if isinstance(dtype, int) else dtype).lower()

    def is_constant(self, value: object, number: float) -> bool:
        """Returns True if `value` is a plain tensor (no Parameter) filled with `number`."""
        atom = getattr(value, "hpmoe_atom", None)
        tensor = self.captures.get(atom) if isinstance(atom, Var) else None
        return tensor is not None and not isinstance(tensor, Parameter) and bool((widen(tensor.asnumpy()) == number).all())

    def _wrap(self, var: Var) -> Tracer | RouteTracer:
        return RouteTracer(var, self) if isinstance(var.aval, RouteAval) else make_tracer(var, var.aval, self)
