"""Calls under MindSpore's autograd: one binding, whatever runs the programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mindspore import Tensor

from hpmoe.runtime.backend import Backend
from hpmoe.runtime.one_call import Call
from hpmoe.support.mindspore_private import Differentiable, end_gradients_at_exceptions, gradient_depth, takes_gradient

end_gradients_at_exceptions()


def run(backend: Backend, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a call, differentiable where MindSpore takes a gradient."""
    if not takes_gradient():
        return backend.compute(call, tensors)
    outputs = _DifferentiableCall.apply(backend, call, *tensors)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


class _DifferentiableCall(Differentiable):
    """A call as an operation of autograd: its forward saves what its backward reads."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, call: Call, *tensors: Tensor) -> Any:
        call = dataclasses.replace(call, traced=call.traced.asked(ctx.needs_input_grad[-len(tensors):]))
        results, ctx.saved = backend.forward(call, tensors)
        ctx.backend, ctx.call, ctx.num_tensors = backend, call, len(tensors)
        ctx.is_nested = gradient_depth() > 1
        return tuple(results) if len(results) != 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.is_nested:
            raise ctx.call.second_derivative()
        lin = ctx.call.traced.linearized
        found = ctx.backend.backward(ctx.call, ctx.saved, [grads[i] for i in lin.cotangents])
        result: list[Tensor | None] = [None] * ctx.num_tensors
        for i, grad in zip(lin.differentiable, found, strict=True):
            result[i] = grad
        return (None, None, *result)
