"""Compares a backward pass with the gradient of its forward pass, by central differences in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.support.dtypes import widen
from hpmoe.testing.reference import Arrays, Reference, gradient_name

STEP = 1e-5  # of inputs, which are of the order of 1
MOST = 1e-4  # relative error of a derivative, of which rounding and the step make about 1e-9

Fault = tuple[str, float, float]  # a gradient, the derivative by the backward pass and by differences of the forward pass


def unfollowed_step(reference: Reference, args: Arrays, cotangents: Arrays, num_tokens: Sequence[int] | None,
                    seed: int) -> str:
    """Names the first rewrite of passes whose backward pass is not the gradient of its forward pass, for an error; else "".
    """
    before: set[str] = set()
    for count in range(len(reference.steps) + 1):
        found = _faults(reference.under(reference.steps[:count]), args, cotangents, num_tokens, seed)
        new = [fault for fault in found if fault[0] not in before]
        if count and new:
            rewrite, (name, by_backward, by_forward) = reference.steps[count - 1].rewrite, new[0]
            return (f"\n  {rewrite.__name__}: its backward pass is not the gradient of its forward pass: along a random "
                    f"direction {name} gives {by_backward:.6g}, and differences of the forward pass {by_forward:.6g}\n"
                    f"  {rewrite.__name__} rewrites passes after gradients are taken (passes={rewrite.passes!r}); without "
                    "passes= the gradient is that of what it returns")
        before = {name for name, *_ in found}
    return ""


def _faults(reference: Reference, args: Arrays, cotangents: Arrays, num_tokens: Sequence[int] | None,
            seed: int) -> list[Fault]:
    """Returns the gradients whose derivative along a random direction is not that of the forward pass."""
    inputs = [[np.asarray(widen(x), np.float64) if i in reference.linearized.differentiable else x
               for i, x in enumerate(mine)] for mine in reference.inputs(args)]
    cotangents = [[np.asarray(widen(c), np.float64) for c in mine] for mine in cotangents]
    rng, faults = np.random.default_rng([seed, 2]), []
    grads = reference.gradients_of(inputs, cotangents, num_tokens)
    places = reference.linearized.cotangents

    def objective(moved: Arrays) -> float:
        outs = reference.results_of(moved, num_tokens)
        return sum(float((out[i] * c).sum()) for out, mine in zip(outs, cotangents, strict=True)
                   for i, c in zip(places, mine, strict=True))
    for i in reference.linearized.differentiable:
        name = gradient_name(reference.program, i)
        along = [rng.standard_normal(np.shape(mine[i])) for mine in inputs]
        ahead, behind = ([[x + sign * STEP * v if j == i else x for j, x in enumerate(mine)]
                          for mine, v in zip(inputs, along, strict=True)] for sign in (1.0, -1.0))
        by_forward = (objective(ahead) - objective(behind)) / (2.0 * STEP)
        by_backward = sum(float((g * v).sum()) for g, v in zip(grads[name], along, strict=True))
        if abs(by_backward - by_forward) > MOST * max(abs(by_backward), abs(by_forward), STEP):
            faults.append((name, by_backward, by_forward))
    return faults
