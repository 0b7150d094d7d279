"""Single kernels as taskflows: a matrix product, a product of experts, an elementwise function, an exchange of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Tensor

import hpmoe
from hpmoe.ir.program import Program
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.workload import balanced_ids
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows


def product_flow(machine: hpmoe.Machine, rows: int, inner: int, cols: int,
                 dtype: str = "bfloat16") -> hpmoe.rewriting.Taskflow:
    """A matrix product as a kernel of its own."""
    return function_flow(machine, lambda x, w: x @ w, ((rows, inner), (inner, cols)), dtype)


def function_flow(machine: hpmoe.Machine, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...],
                  dtype: str) -> hpmoe.rewriting.Taskflow:
    """A function of arrays as kernels, one after another."""
    return _launched(machine, hpmoe.trace(function, *(hpmoe.ShapeDtypeStruct(shape, dtype) for shape in shapes)))


def experts_flow(machine: hpmoe.Machine, experts: int, rows: int, inner: int, cols: int,
                 dtype: str) -> hpmoe.rewriting.Taskflow:
    """A product of the rows of some experts, of which each has as many as every other, with weights of their own; before it
    the kernels that lay the rows out."""
    def function(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        laid_out, route = hpmoe.dispatch(x, ids, num_local_experts=experts)
        return hpmoe.grouped_matmul(laid_out, weights, route)
    avals = [hpmoe.ShapeDtypeStruct(shape, "int32" if i == 1 else dtype)
             for i, shape in enumerate(((rows, inner), (rows, 1), (experts, inner, cols)))]
    return _launched(machine, _planned(hpmoe.trace(function, *avals), balanced_ids(1, rows, 1, experts), experts))


def exchange_flow(machine: hpmoe.Machine, leg: str, ids: np.ndarray, num_experts: int, hidden: int,
                  dtype: str = "bfloat16", dedup: bool = False, quantised: str = "",
                  put_cols: int | str = "auto") -> hpmoe.rewriting.Taskflow:
    """Rows to the ranks of their experts, "dispatch", or back and summed, "combine", by one-sided puts of one kernel.

    With `quantised`, "int8" or "float8_e4m3fn", the kernel also makes rows of that, with a scale for each row or each 128
    columns, and leaves them so where they arrive.
    """
    program = _dispatch(ids, num_experts, hidden, dtype)
    program = hpmoe.rewriting.vjp(program) if leg == "combine" else program  # whose rows come back the same way
    program = _planned(program, ids, num_experts)
    program = hpmoe.send_rows.apply_to(program, scheme="deduplicated") if dedup else program
    program = _quantised(program, quantised) if quantised else program
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=machine)
    flow = hpmoe.overlap_comm.apply_to(flow, put_cols=put_cols, returns=2)
    return hpmoe.assign_queues.apply_to(flow, machine=machine)


def collective_flow(machine: hpmoe.Machine, ids: np.ndarray, num_experts: int, hidden: int,
                    dtype: str) -> hpmoe.rewriting.Taskflow:
    """Rows to the ranks of their experts by a collective."""
    return _launched(machine, _planned(_dispatch(ids, num_experts, hidden, dtype), ids, num_experts), direct=True)


def kernel_us(line: hpmoe.Timeline) -> dict[str, float]:
    """Returns the time of each kernel on the first rank, without its launch. A second product or quantisation has the
    suffix 2."""
    op, out = line.flow.tasks["op"][line.task], {}
    for i, known in ((i, known) for i, known in enumerate(line.flow.ops) if not known.primitive.is_launch):
        mine = (op == i) & (line.rank == 0)
        name = f"{known.label}2" if known.label in out else known.label
        out[name] = float(line.end[mine].max() - line.begin[mine].min()) if mine.any() else 0.0
    return out


def _dispatch(ids: np.ndarray, num_experts: int, hidden: int, dtype: str) -> Program:
    ep, tokens, top_k = ids.shape

    def dispatch(x: Tensor, ids: Tensor) -> Tensor:
        return hpmoe.dispatch(x, ids, num_local_experts=num_experts // ep)[0]
    return hpmoe.trace(dispatch, hpmoe.ShapeDtypeStruct((tokens, hidden), dtype),
                       hpmoe.ShapeDtypeStruct((tokens, top_k), "int32"),
                       mesh=hpmoe.Mesh(ep))


def _planned(program: Program, ids: np.ndarray, num_experts: int) -> Program:
    ep, tokens, top_k = ids.shape
    rows = max(Direct(ep, tokens, top_k, num_experts).received(ids))
    return with_planned_rows(program, [PlannedRows(rows, rows)] * len(routes_of(program)))


def _quantised(program: Program, dtype: str) -> Program:
    program = hpmoe.quantize_rows.apply_to(program, dtype=dtype, scale=128 if dtype.startswith("float8") else None)
    *before, as_floats = program.equations
    return program.replace(equations=tuple(before), outputs=as_floats.inputs[:1])


def _launched(machine: hpmoe.Machine, program: Program, direct: bool = False) -> hpmoe.rewriting.Taskflow:
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=machine)
    flow = hpmoe.launch_kernels.apply_to(flow, direct=direct)
    return hpmoe.assign_queues.apply_to(flow, machine=machine, policy="round_robin")
