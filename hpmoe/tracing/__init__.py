"""Tracing: a MindSpore function, run once on tensors without data, becomes a Program."""

# These modules fill the table of calls.
from hpmoe.tracing import (
    indexing as indexing,
    rules_elementwise as rules_elementwise,
    rules_moe as rules_moe,
    rules_reduce as rules_reduce,
    rules_shape as rules_shape,
)
from hpmoe.tracing.entry import argument_names, function_name, trace, trace_with_tree

__all__ = ["argument_names", "function_name", "trace", "trace_with_tree"]
