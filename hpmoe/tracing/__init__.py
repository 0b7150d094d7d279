"""Tracing: a MindSpore function, run once on tensors without data, becomes a Program."""

from hpmoe.tracing import indexing, rules_elementwise, rules_reduce, rules_shape  # noqa: F401  (they fill the table of calls)
from hpmoe.tracing.entry import trace, trace_with_tree

__all__ = ["trace", "trace_with_tree"]
