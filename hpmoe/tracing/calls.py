"""The table of MindSpore calls: one rule for all names of an operation, whichever entry point it was reached by."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.tracer import Trace

Rule = Callable[..., Any]  # of a recorder and what MindSpore's operation is given, in its order
F = TypeVar("F", bound=Rule)

CALLS: dict[str, Rule] = {}

# The same argument has several names, by entry point.
_KEYWORDS = {"axis": "dim", "axes": "dim", "keep_dims": "keepdim", "keepdims": "keepdim", "dims": "dim"}
# Operations that no rule can be of, by what their names begin with: what is said of them, why, and what to write.
_REFUSED = (
    (("Inplace", "Assign"), "the in-place write", "a Program is pure",
     "a new value: y = x + d for x.add_(d), mint.where(mask, v, x) for a masked write"),
    (("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast_", "Send", "Receive", "CommTensor", "DistComm",
      "InnerComm"), "the collective", "a Program moves data between ranks by route only",
     "hpmoe.dispatch and hpmoe.combine, or communicate outside the function"),
    (("MaskedSelect", "NonZero", "Unique"), "the MindSpore operation", "the shape of its result depends on values",
     "mint.where(mask, x, 0), which keeps the shape; for tokens of experts, hpmoe.dispatch"),
    (("Bincount", "Histc"), "the MindSpore operation", "it has no primitive",
     "one_hot(ids, num_experts).sum(0), or hpmoe.router.tokens_per_expert(ids, num_experts=num_experts)"),
)


def call(*names: str) -> Callable[[F], F]:
    """Registers `rule(recorder, *args, **kwargs)` for MindSpore's operation names."""
    def register(rule: F) -> F:
        for name in names:
            CALLS[name] = _with_keywords(name, rule)
        return rule
    return register


def calls(rules: Mapping[str, Rule], wrapped: Callable[[Rule], Rule] = lambda rule: rule) -> None:
    """Registers rules by the names of MindSpore's operations, separated by spaces where a rule has several."""
    for names, rule in rules.items():
        call(*names.split())(wrapped(rule))


def _with_keywords(name: str, rule: Rule) -> Rule:
    signature = inspect.signature(rule)

    @functools.wraps(rule)
    def checked(recorder: Trace, *args: object, **kwargs: object) -> object:
        kwargs = {_KEYWORDS.get(k, k): v for k, v in kwargs.items()}
        try:
            signature.bind(recorder, *args, **kwargs)
        except TypeError as error:
            raise not_traceable(f"{name} with these arguments", str(error), "the operation with its usual arguments: "
                                f"{_usual(signature)}") from None
        return rule(recorder, *args, **kwargs)
    return checked


def _usual(signature: inspect.Signature) -> str:
    return "(" + ", ".join(re.split("[:=]", str(p))[0] for p in list(signature.parameters.values())[1:]) + ")"


def find_call(name: str) -> Rule:
    """Returns the rule for a MindSpore operation; raises TraceError, with the nearest known names, if there is none."""
    rule = CALLS.get(name) or CALLS.get(name.removeprefix("Deprecated"))
    if rule is not None:
        return rule
    for begins, what, why, instead in _REFUSED:
        if name.startswith(begins):
            raise not_traceable(f"{what} {name}", why, instead)
    near = difflib.get_close_matches(name, CALLS, n=3, cutoff=0.7)
    known = f" (nearest known: {', '.join(near)})" if near else ""
    raise not_traceable(f"the MindSpore operation {name}", "it has no primitive", "elementwise mint functions, sums, "
                        f"matmul and reshapes, or compute it outside and pass the result{known}")
