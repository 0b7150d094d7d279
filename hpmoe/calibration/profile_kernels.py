"""Kernels of a profile that the model has, one for all launches of a kernel, with their modelled work."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

import hpmoe
from hpmoe.calibration.kernel_flows import (
    collective_flow,
    exchange_flow,
    experts_flow,
    function_flow,
    kernel_us,
    product_flow,
)
from hpmoe.calibration.profile_table import Kernel, Shape
from hpmoe.ir.limits import MOST_RANKS
from hpmoe.routing.workload import sampled_ids
from hpmoe.support.dtypes import FLOATS

MOST_MODELLED = 24  # of distinct ones, those that take most of the time
MOST_ELEMENTS = 2**32  # of an array of a kernel that is simulated
PRODUCTS = ("matmul", "matmulv2", "matmulv3", "batchmatmul", "batchmatmulv2")
OF_EXPERTS = ("groupedmatmul",)
ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "swiglu": hpmoe.swiglu, "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}
COLLECTIVES = "alltoall"


class Unused(NamedTuple):
    """Launches of one type of kernel that the calibration leaves out: number, total microseconds, and the reason."""

    kind: str
    launches: int
    us: float
    why: str


class Timed(NamedTuple):
    """Launches of a kernel with the same shapes."""

    label: str  # type and shapes of the kernel
    work: str  # in words what the model takes it for
    family: str  # "product", "elementwise" or "exchange"
    launches: int
    us: float  # median of the times
    flops: float  # operations of a product; 0 for other kernels
    simulate: Callable[[hpmoe.Machine], float]  # the time by the model, in microseconds, on a machine with as many workers


class _Work(NamedTuple):
    """A kernel that the model has: `flow` makes it, `kernel` is its name in that, or all of it where empty."""

    family: str
    work: str
    flow: Callable[[hpmoe.Machine], tuple[hpmoe.rewriting.Taskflow, np.ndarray | None]]
    kernel: str = ""
    flops: float = 0.0


def timed_kernels(kernels: Sequence[Kernel], machine: hpmoe.Machine, ep: int | None,
                  progress: Callable[[str], None]) -> tuple[list[Timed], list[Unused]]:
    """Divides the kernels of a profile into those that a machine is fitted to and the others.

    `ep` is the number of ranks of exchanges; None if the counts that a dispatch puts out say so.
    """
    groups: dict[tuple, list[Kernel]] = collections.defaultdict(list)
    made: dict[str, set[Shape]] = collections.defaultdict(set)  # by the kernel before in each stream
    for kernel in kernels:
        is_fresh = bool(kernel.inputs) and kernel.inputs[0] in made[kernel.stream]
        groups[kernel.kind, kernel.inputs, kernel.dtypes, kernel.outputs, is_fresh].append(kernel)
        made[kernel.stream] = {shape for shape in kernel.outputs if shape}
    ep = ep or _ranks_of(kernels)
    used, unused = [], collections.defaultdict(list)
    for (*_, is_fresh), same in sorted(groups.items(), key=lambda group: -sum(kernel.us for kernel in group[1])):
        try:
            work = _work(same[0], is_fresh, ep)
            if len(used) == MOST_MODELLED:
                raise _NotModelled(f"the {MOST_MODELLED} kernels that take most of the time are enough")
        except _NotModelled as why:
            unused[same[0].kind, str(why)] += same
            continue
        progress(f"tiles of {same[0].kind} {_shapes(same[0].inputs)}")
        used.append(Timed(f"{same[0].kind} {_shapes(same[0].inputs)}", work.work, work.family, len(same),
                          statistics.median(kernel.us for kernel in same), work.flops, _simulation(work, machine)))
    left = [Unused(kind, len(same), sum(kernel.us for kernel in same), why) for (kind, why), same in unused.items()]
    return used, sorted(left, key=lambda row: -row.us)


class _NotModelled(Exception):
    """Raised if the calibration leaves a kernel out; the text, the reason, becomes the `why` of an Unused."""


def _simulation(work: _Work, machine: hpmoe.Machine) -> Callable[[hpmoe.Machine], float]:
    flow, routing = work.flow(machine)

    def simulate(on: hpmoe.Machine) -> float:
        line = hpmoe.simulate(flow, on, routing=routing)
        if work.kernel:
            return kernel_us(line)[work.kernel]
        is_launched = any(op.primitive.is_launch for op in flow.ops)
        return line.span - (on.host.launch_us if is_launched else 0.0)
    return simulate


def _work(kernel: Kernel, is_fresh: bool, ep: int | None) -> _Work:
    kind = kernel.kind.lower().replace("_", "")
    _check(kernel.us > 0, "it takes no time")
    _check(all(math.prod(shape) <= MOST_ELEMENTS for shape in kernel.inputs), "it is too large to be simulated here")
    if COLLECTIVES in kind:
        return _collective(kernel, ep)
    if kind.startswith("moedistribute") and ("dispatch" in kind or "combine" in kind):
        return _exchange(kernel, "dispatch" if "dispatch" in kind else "combine", ep)
    known = kind in PRODUCTS or kind in OF_EXPERTS or kind in ELEMENTWISE
    _check(known, "the model has no kernel of this type")
    arrays = [shape for shape in kernel.inputs if shape]
    _check(bool(arrays) and bool(kernel.outputs) and bool(kernel.outputs[0]), "the file does not say its shapes")
    _check(kernel.dtypes[0] in FLOATS, f"the model has no rate of {kernel.dtypes[0] or 'a dtype that is not said'}")
    if kind in ELEMENTWISE:
        return _elementwise(kernel, kind, arrays, is_fresh)
    return _product(kernel, arrays, kernel.outputs[0]) if kind in PRODUCTS else _experts(kernel, arrays, kernel.outputs[0])


def _product(kernel: Kernel, arrays: Sequence[Shape], out: Shape) -> _Work:
    """Returns a product; rows and columns are those of the result for any transposed operand."""
    _check(len(arrays) >= 2 and len(out) == 2, "it is no product of two matrices")
    rows, cols = out
    inner = math.prod(arrays[0]) // max(rows, 1)
    fits = min(rows, cols, inner) > 0 and (math.prod(arrays[0]), math.prod(arrays[1])) == (rows * inner, inner * cols)
    _check(fits, "its shapes are not those of a product")
    return _Work("product", f"product of {rows} x {inner} x {cols}", lambda on: (
        product_flow(on, rows, inner, cols, kernel.dtypes[0]), None), flops=2.0 * rows * inner * cols)


def _experts(kernel: Kernel, arrays: Sequence[Shape], out: Shape) -> _Work:
    _check(len(out) == 2, "it sums over rows of experts, whose numbers the file does not say")
    _check(len(arrays) >= 2 and len(arrays[0]) == 2, "its shapes are not those of a product of experts")
    rows, cols = out
    inner = arrays[0][1]
    experts = math.prod(arrays[1]) // max(1, inner * cols)
    _check(rows == arrays[0][0] and min(rows, cols, inner, experts) > 0
           and math.prod(arrays[1]) == experts * inner * cols, "its shapes are not those of a product of experts")
    return _Work("product", f"product of {rows} x {inner} x {cols}, {experts} experts, even", lambda on: (
        experts_flow(on, experts, rows, inner, cols, kernel.dtypes[0]), None), "grouped_matmul",
        2.0 * rows * inner * cols)


def _elementwise(kernel: Kernel, kind: str, arrays: Sequence[Shape], is_fresh: bool) -> _Work:
    """Returns an elementwise kernel; L2 holds as much as fits of an array that the kernel before made."""
    wanted, function = 1 if kind == "swiglu" else 2, ELEMENTWISE[kind]
    _check(len(arrays) == wanted and len(set(arrays)) == 1, "the model has it for arrays of one shape alone")
    shape = math.prod(arrays[0][:-1]), arrays[0][-1]
    _check(min(shape) > 0 and (kind != "swiglu" or shape[1] % 2 == 0), "it has no elements")
    return _Work("elementwise", f"{kind} of {shape[0]} x {shape[1]}{', just made' if is_fresh else ''}", lambda on: (
        function_flow(on, lambda x, *other: function(x * 1.0 if is_fresh else x, *other), (shape,) * wanted,
                      kernel.dtypes[0]), None), kind)


def _exchange(kernel: Kernel, leg: str, ep: int | None) -> _Work:
    """Returns an exchange of rows with uniformly random experts; the file does not record the ids."""
    _check(ep is not None, "the file does not say the ranks of an exchange; --ep does")
    assert ep is not None
    arrays = kernel.inputs, kernel.outputs
    (with_rows, with_counts), at = (arrays, 4) if leg == "dispatch" else (arrays[::-1], 3)
    found = [*with_rows[:1], *kernel.inputs[1:2], *with_counts[at:at + 1]]
    _check([len(shape) for shape in found] == [2, 2, 1] and found[0][0] == found[1][0],
           "its shapes are not those of an exchange")
    rows, ids, (experts,) = found
    is_int8 = leg == "dispatch" and "int8" in kernel.out_dtypes[:1]
    _check(kernel.dtypes[0] in FLOATS and 0 < ids[1] <= experts <= 2**15 and experts % ep == 0 and min(rows) > 0,
           f"its experts, {experts}, are not shared by {ep} ranks")
    drawn = sampled_ids(ep, ids[0], ids[1], experts, is_zipf=False, seed=0)
    work = f"{leg} of {rows[0]} tokens, {ids[1]} of {experts} experts, {ep} ranks"
    return _Work("exchange", work, lambda on: (
        exchange_flow(on, leg, drawn, experts, rows[1], kernel.dtypes[0], quantised="int8" if is_int8 else ""), drawn))


def _collective(kernel: Kernel, ep: int | None) -> _Work:
    arrays = [shape for shape in kernel.inputs if len(shape) == 2 and min(shape) > 0]
    _check(bool(arrays) and kernel.dtypes[0] in FLOATS, "the file does not say its bytes")
    _check(ep is not None, "the file does not say the ranks of an exchange; --ep does")
    assert ep is not None
    rows, cols = arrays[0]
    ids = sampled_ids(ep, rows, 1, ep, is_zipf=False, seed=0)
    return _Work("exchange", f"all-to-all of {rows} x {cols}, {ep} ranks", lambda on: (
        collective_flow(on, ids, ep, cols, kernel.dtypes[0]), ids))


def _ranks_of(kernels: Sequence[Kernel]) -> int | None:
    """Returns the number of ranks from a dispatch's outputs: counts per local expert, and per rank and expert."""
    for kernel in kernels:
        if "dispatch" in kernel.kind.lower() and len(kernel.outputs) > 4:
            own, all_ = kernel.outputs[3:5]
            if len(own) == len(all_) == 1 and own[0] > 0 and all_[0] % own[0] == 0 and all_[0] // own[0] <= MOST_RANKS:
                return all_[0] // own[0]
    return None


def _shapes(shapes: Sequence[Shape]) -> str:
    return ";".join(",".join(map(str, shape)) for shape in shapes if shape)


def _check(condition: bool, why: str) -> None:
    if not condition:
        raise _NotModelled(why)
