"""The Ascend kernel on a CPU: its unmodified source on the twin of kernels/ascendc/twin, all ranks or that of a process."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.ascendc.layout import HEAP, lay_out
from hpmoe.kernels.ascendc.rules import check_flow, check_image, check_main_gradients
from hpmoe.kernels.buffers import Placed, Places
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.executable import Executable
from hpmoe.kernels.link import Link
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Status
from hpmoe.kernels.packing import pack
from hpmoe.kernels.plan_images import in_words, pack_plans
from hpmoe.kernels.protocol import Code
from hpmoe.runtime.planned_rows import choice_at_start
from hpmoe.runtime.targets import register_target
from hpmoe.support import loading
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.support.known import known
from hpmoe.support.loading import address

COMPILED = Path(__file__).parents[2] / "_twin.so"
ABI_VERSION = 10
FAULT_BYTES = 8192
LINE_WORDS = 16
SEEDS = itertools.count()


class Rank(ctypes.Structure):
    """HpmoeTwinRank of ascendc/twin/api.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("buffers", "sizes", "symmetric", "counters", "targets", "tables")] + [
        ("num_tokens", ctypes.c_int64), ("begin", ctypes.c_void_p), ("of", ctypes.c_void_p), ("statuses", ctypes.c_void_p)]


class Effort(ctypes.Structure):
    """What an AIV did, and an estimate of the cycles that it takes for it: twin::Effort."""

    _fields_ = [(name, ctypes.c_int64) for name in (
        "cycles", "scalar_words", "cached_lines", "vector_instructions", "vector_steps", "copies", "waits_for_copies")]


class Decoding(ctypes.Structure):
    """What decoding tasks took of the scalar units of all AIC, or of all AIV: twin::Decoding."""

    _fields_ = [(name, ctypes.c_int64) for name in ("tasks", "words", "lines", "cycles")]


class Counts(ctypes.Structure):
    """What the cores of a launch moved and computed, the AIV that took longest, and the plan that it took: twin::Counts."""

    _fields_ = [*[(name, ctypes.c_int64) for name in (
        "gm_to_ub", "ub_to_gm", "gm_to_l1", "l1_to_gm", "l1_to_l0a", "l1_to_l0b", "l0c_to_gm", "cube_flops",
        "vector_bytes")], ("busiest", Effort),
                ("aic", Decoding), ("aiv", Decoding), ("l0_loads", ctypes.c_int64),
                *[(name, ctypes.c_int64 * 24) for name in ("to_ub", "from_ub", "to_l1", "from_l0c")],
                ("plan", ctypes.c_int64)]


class Launch(ctypes.Structure):
    """HpmoeTwinLaunch of ascendc/twin/api.h."""

    _fields_ = [("image", ctypes.c_void_p), ("image_bytes", ctypes.c_int64), ("mine", ctypes.POINTER(Rank)),
                ("epoch", ctypes.c_int32), ("timeout", ctypes.c_double), ("seed", ctypes.c_uint64),
                ("counts", ctypes.POINTER(Counts))]


@cache
def load() -> ctypes.CDLL:
    """The twin with the kernel in it. Raises ImportError when it has not been built, or before its sources last changed."""
    launch = [
        *(ctypes.c_void_p, ctypes.c_int64),  # image
        *(ctypes.POINTER(Rank), ctypes.c_int32, ctypes.c_int32, ctypes.c_int32),  # ranks, epoch, launches
        *(ctypes.c_double, ctypes.c_uint64),  # timeout, seed
        *(ctypes.POINTER(Status), ctypes.POINTER(Counts), ctypes.c_char_p, ctypes.c_int64),
    ]
    path = loading.find_library(COMPILED.parent, COMPILED.name)
    return loading.load_library(path, "hpmoe_twin_abi_version", ABI_VERSION, {
        "hpmoe_twin_table_words": (ctypes.c_int64, [ctypes.c_void_p]),
        "hpmoe_twin_counters": (ctypes.c_int64, [ctypes.c_void_p]),
        "hpmoe_twin_targets": (ctypes.c_int64, [ctypes.c_void_p]),
        "hpmoe_twin_counter_words": (ctypes.c_int32, []),
        "hpmoe_twin_chip": (ctypes.c_int32, []),
        "hpmoe_twin_launch": (ctypes.c_int, launch),
        "hpmoe_twin_run_rank": (ctypes.c_int, []),
        "hpmoe_twin_use_kernel": (None, [ctypes.c_void_p]),
    })


class Kept(NamedTuple):
    """What a launch of a rank keeps in its symmetric heap: counters, what these have reached, two routing tables."""

    counters: np.ndarray
    targets: np.ndarray
    tables: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class TwinExecutable(Executable):
    """The Ascend kernel of one direction on the twin; see Executable.

    Attributes:
        tables: routing tables of even and odd launches, for each rank.
        state: how many launches these counters have seen.
        counts: what the last launch moved and computed.
        pool: memory of counters and tables.
    """

    tables: np.ndarray = dataclasses.field(kw_only=True)
    state: list[int] = dataclasses.field(kw_only=True)
    counts: Counts = dataclasses.field(kw_only=True)
    pool: Pool = dataclasses.field(kw_only=True)

    target = "ascend-twin"

    def reaches(self, link: Link) -> bool:
        return link.shares_memory and not self.others and super().reaches(link)

    def _launch(self, placed, num_tokens, trace, moved):
        _check_untimed(trace)
        plans = [placed, *(self._placed_as(flow, placed) for flow in self.others)]
        buffers = [of_plan.read_ranks() for of_plan in plans]
        ranks, alive = (Rank * len(buffers[0]))(), []
        for rank, arrays in enumerate(zip(*buffers, strict=True)):
            check_main_gradients(self.flow, arrays[0], self.target)
            kept = Kept(self.counters[rank], self.bases[rank], self.tables[rank])
            addresses = in_words(self.flows, [[a.ctypes.data for a in of_plan] for of_plan in arrays], 0)
            sizes = in_words(self.flows, [[a.nbytes for a in of_plan] for of_plan in arrays], 0)
            alive += self._fill(ranks[rank], addresses, sizes, kept, num_tokens[rank])
        self.state[0] += 1
        seed, status, fault = next(SEEDS), Status(), ctypes.create_string_buffer(FAULT_BYTES)
        code = load().hpmoe_twin_launch(
            self.image.ctypes.data, self.image.nbytes, ranks, len(ranks), self.state[0], 1, self.timeout, seed,
            ctypes.byref(status), ctypes.byref(self.counts), fault, FAULT_BYTES)
        if code:
            self._forget()
        if code == 2:
            raise LaunchError(f"the kernel breaks a rule of the hardware (seed {seed}): {fault.value.decode()}")
        if code:
            raise make_error(status, self.image, plan=self.counts.plan)
        _copy_outputs(plans[self.counts.plan], self.flows[self.counts.plan], placed, self.flow)

    def _placed_as(self, flow: Taskflow, placed: Placed) -> Placed:
        """The buffers of another plan, its inputs and all outputs of known size where they are placed already."""
        mine, places = self.flow, Places(flow)
        inputs = [[placed.array(rank, b) for b in mine.inputs] for rank in range(mine.ep_size)]
        results = {theirs: [placed.array(rank, b) for rank in range(mine.ep_size)]
                   for theirs, b in zip(flow.outputs, mine.outputs, strict=True) if theirs in places.arrays}
        return Placed(places, self.pool, inputs, placed.received, False, results)

    def _launch_rank(self, link: Link, placed: Placed, counts: np.ndarray, num_tokens: int,
                     record: Sequence[np.ndarray | None]) -> None:
        """This rank's cores, as one launch whose counters begin at 0; what other ranks write to lies in this one's heap."""
        _check_untimed(record[0])
        arrays, addresses = placed.ranks()[0], placed.addresses[0]
        check_main_gradients(self.flow, arrays, self.target)
        kept = Kept(*(link.pool.zeros(a.shape[1:], a.dtype) for a in (self.counters, self.bases, self.tables)))
        kept.tables[...] = -1
        sizes = [max(1, len(a)) * a.shape[1] * a.itemsize for a in arrays]  # at least a row, which nobody reads
        symmetric = self.symmetric[:len(arrays)]  # of the one plan's buffers
        offsets = [link.offset_of(place) if shared else -1 for place, shared in zip(addresses, symmetric, strict=True)]
        for b in np.flatnonzero(symmetric):
            if offsets[b] < 0:
                raise make_error(Status(code=Code.NOT_SHARED, rank=link.rank, value=b), self.image)
        told = np.array([*(link.offset_of(address(a)) for a in (kept.counters, kept.tables)), *offsets, *sizes], np.int64)
        mine = Rank()
        alive = self._fill(mine, addresses, sizes, kept, num_tokens)
        launch = Launch(self.image.ctypes.data, self.image.nbytes, ctypes.pointer(mine), 1, self.timeout, next(SEEDS),
                        ctypes.pointer(self.counts))
        run_rank = known(ctypes.cast(load().hpmoe_twin_run_rank, ctypes.c_void_p).value)
        link.launch_by(run_rank, ctypes.addressof(launch), self, told, (placed, kept, alive))

    def _fill(self, rank: Rank, addresses: Sequence[int], sizes: Sequence[int], kept: Kept,
              num_tokens: int) -> list[np.ndarray]:
        """Says what a rank brings; returns what has to live as long."""
        fields = [np.array(addresses, np.uint64), np.array(sizes, np.int64), self.symmetric]
        for name, array in zip(("buffers", "sizes", "symmetric", *Kept._fields), (*fields, *kept), strict=True):
            setattr(rank, name, array.ctypes.data)
        rank.num_tokens = num_tokens
        return fields

    @functools.cached_property
    def symmetric(self) -> np.ndarray:
        """uint8, whether each buffer lies in the symmetric heap: other ranks write to it."""
        symmetric = [[place[0] == HEAP for place in lay_out(flow).places] for flow in self.flows]
        return np.array(in_words(self.flows, symmetric, False), np.uint8)

    def _forget(self):
        """After a failure nothing is known of the counters: every rank begins anew."""
        self.counters[...], self.bases[...], self.state[0] = 0, 0, 0


def _check_untimed(trace: np.ndarray | None) -> None:
    if trace is not None:
        raise ArgumentError("hpmoe.measure: the twin of an NPU has no times; measure the cpu target, or hpmoe.simulate")


def _copy_outputs(placed: Placed, flow: Taskflow, to: Placed, of: Taskflow) -> None:
    """From where the flow of one plan has them to where that of another one does."""
    for rank in range(flow.ep_size if placed is not to else 0):
        for theirs, mine in zip(flow.outputs, of.outputs, strict=True):
            np.copyto(to.array(rank, mine), placed.array(rank, theirs))


def compile_twin(flow: Taskflow, timeout: float) -> TwinExecutable:
    """Packs a Taskflow for the twin of an NPU."""
    check_flow(flow, TwinExecutable.target, load().hpmoe_twin_chip())
    image = pack(flow, "ascend")
    check_image(image)
    return _make(image, (flow,), timeout, flow.provenance)


def twin_of_plans(kernels: Sequence[TwinExecutable]) -> TwinExecutable:
    """One kernel of several that differ in their plans alone; see choice_at_start."""
    chosen = choice_at_start([kernel.flow for kernel in kernels])
    if chosen is None:
        return kernels[0]
    return _make(pack_plans([kernel.image for kernel in kernels], chosen), [kernel.flow for kernel in kernels],
                 kernels[0].timeout, kernels[0].provenance)


def _make(image: np.ndarray, flows: Sequence[Taskflow], timeout: float, provenance: tuple[str, ...]) -> TwinExecutable:
    pool, ep_size = Pool(), flows[0].ep_size
    counters = load().hpmoe_twin_counters(image.ctypes.data) * load().hpmoe_twin_counter_words()
    words, targets = (size(image.ctypes.data) for size in (load().hpmoe_twin_table_words, load().hpmoe_twin_targets))
    return TwinExecutable(
        flows[0], image, timeout, provenance, pool.zeros((ep_size, counters), np.int32),
        pool.zeros((ep_size, -(-max(targets, 1) // LINE_WORDS) * LINE_WORDS), np.int32), others=tuple(flows[1:]),
        tables=pool.zeros((ep_size, 2 * words), np.int32), state=[0], counts=Counts(), pool=pool)


register_target(TwinExecutable.target, compile_twin, of_plans=twin_of_plans)
