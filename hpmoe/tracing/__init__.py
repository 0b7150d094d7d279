"""Tracing: a MindSpore function, run once on tensors without data, becomes a Program."""

# These modules fill the table of calls.
from hpmoe.tracing import (
    indexing as indexing,
    rules_activations as rules_activations,
    rules_arithmetic as rules_arithmetic,
    rules_choices as rules_choices,
    rules_matmul as rules_matmul,
    rules_norms as rules_norms,
    rules_order as rules_order,
    rules_reduce as rules_reduce,
    rules_shape as rules_shape,
)
from hpmoe.tracing.entry import argument_names, function_name, trace, trace_with_tree

__all__ = ["argument_names", "function_name", "trace", "trace_with_tree"]
