"""The target "ascend-emulator": the Ascend kernel on an emulated NPU of this CPU, for all ranks or that of a process."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.ascendc.bodies import BODIES
from hpmoe.kernels.ascendc.emulator import native
from hpmoe.kernels.ascendc.emulator.native import Counts, Kept, Launch, Rank
from hpmoe.kernels.ascendc.layout import HEAP, lay_out
from hpmoe.kernels.ascendc.packing import pack_all
from hpmoe.kernels.ascendc.rules import check_main_gradients
from hpmoe.kernels.buffers import Placed, Places
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.host_launch import Explaining, outputs_of, place_all, place_one
from hpmoe.kernels.link import Link
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Status
from hpmoe.kernels.plan_images import in_words
from hpmoe.kernels.protocol import Code
from hpmoe.runtime.targets import Arrays, Executable, Target, register_target
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.support.known import known
from hpmoe.support.loading import address
from hpmoe.support.locks import Lock, new_lock
from hpmoe.timelines.measure import new_record

FAULT_BYTES = 8192
LINE_WORDS = 16
SEEDS = itertools.count()


class EmulatorState:
    """Arrays that live between the launches of an executable.

    Attributes:
        counters, targets, tables: for each rank its counters, the values that these reach, routing tables of even and odd
            launches.
        num_launches: launches that the counters have seen.
        counts: Counts of the last launch.
        pool: memory of these arrays, and of the buffers of other plans.
        lock: held by the launch that uses the counters.
        places: places of the buffers.
    """

    def __init__(self, flows: Sequence[Taskflow], image: np.ndarray):
        emulator, self.pool, ep_size = native.load(), Pool(), flows[0].ep_size
        counters = emulator.hpmoe_emulator_counters(image.ctypes.data) * emulator.hpmoe_emulator_counter_words()
        words, targets = (size(image.ctypes.data)
                          for size in (emulator.hpmoe_emulator_table_words, emulator.hpmoe_emulator_targets))
        self._flows, self.places = flows, Places(flows[0])
        self.counters = self.pool.zeros((ep_size, counters), np.int32)
        self.targets = self.pool.zeros((ep_size, -(-max(targets, 1) // LINE_WORDS) * LINE_WORDS), np.int32)
        self.tables = self.pool.zeros((ep_size, 2 * words), np.int32)
        self.num_launches, self.counts = 0, Counts()
        self.lock: Lock = new_lock()

    def forget(self) -> None:
        """Begins again with counters of 0: a launch that failed leaves them undefined."""
        self.counters[...], self.targets[...], self.num_launches = 0, 0, 0

    @functools.cached_property
    def symmetric(self) -> np.ndarray:
        """1 for each buffer in the symmetric heap, which other ranks write to, uint8."""
        symmetric = [[place[0] == HEAP for place in lay_out(flow).places] for flow in self._flows]
        return np.array(in_words(self._flows, symmetric, False), np.uint8)

    def fill(self, rank: Rank, addresses: Sequence[int], sizes: Sequence[int], kept: Kept,
             num_tokens: int) -> list[np.ndarray]:
        """Writes what a rank brings; returns arrays that must live as long as `rank`."""
        fields = [np.array(addresses, np.uint64), np.array(sizes, np.int64), self.symmetric]
        for name, array in zip(("buffers", "sizes", "symmetric", *Kept._fields), (*fields, *kept), strict=True):
            setattr(rank, name, array.ctypes.data)
        rank.num_tokens = num_tokens
        return fields


class EmulatorTarget(Target[EmulatorState]):
    """Checks every access of the Ascend kernel against the rules of the hardware; see emulator/ of the kernel's folder."""

    name, bodies = "ascend-emulator", BODIES

    def compile(self, flows: Sequence[Taskflow], timeout: float) -> Executable[EmulatorState]:
        taken, image = pack_all(flows, self.name)
        return Executable(self, taken, timeout, image)

    def new_state(self, executable: Executable[EmulatorState]) -> EmulatorState:
        return EmulatorState(executable.flows, executable.image)

    def run(self, executable: Executable[EmulatorState], inputs: Sequence[Arrays], num_tokens: Sequence[int] | None,
            into: Mapping[int, Arrays], received: Sequence[Sequence[int]] | None) -> list[list[np.ndarray]]:
        placed, lengths = place_all(executable, executable.state.places, inputs, num_tokens, into, received)
        _check_untimed(new_record(executable.flow)[0])
        with Explaining(executable), executable.state.lock:
            _launch(executable, placed, lengths)
        return outputs_of(executable.flow, placed)

    def reaches(self, executable: Executable[EmulatorState], link: Link) -> bool:
        return link.shares_memory and len(executable.flows) == 1 and link.size == executable.flow.ep_size

    def run_rank(self, executable: Executable[EmulatorState], link: Link, inputs: Arrays, counts: Arrays,
                 num_tokens: Sequence[int] | None, into: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        placed, length = place_one(executable, executable.state.places, link, inputs, counts, num_tokens, into)
        _check_untimed(new_record(executable.flow, link)[0])
        with Explaining(executable):
            _launch_rank(executable, link, placed, length)
        return outputs_of(executable.flow, placed)[0]


def _launch(executable: Executable[EmulatorState], placed: Placed, num_tokens: list[int]) -> None:
    state, flows, image = executable.state, executable.flows, executable.image
    plans = [placed, *(_placed_as(flow, executable, placed) for flow in flows[1:])]
    buffers = [of_plan.read_ranks() for of_plan in plans]
    ranks, alive = (Rank * len(buffers[0]))(), []
    for rank, arrays in enumerate(zip(*buffers, strict=True)):
        check_main_gradients(executable.flow, arrays[0], executable.target.name)
        kept = Kept(state.counters[rank], state.targets[rank], state.tables[rank])
        addresses = in_words(flows, [[a.ctypes.data for a in of_plan] for of_plan in arrays], 0)
        sizes = in_words(flows, [[a.nbytes for a in of_plan] for of_plan in arrays], 0)
        alive += state.fill(ranks[rank], addresses, sizes, kept, num_tokens[rank])
    state.num_launches += 1
    seed, status, fault = next(SEEDS), Status(), ctypes.create_string_buffer(FAULT_BYTES)
    code = native.load().hpmoe_emulator_launch(
        image.ctypes.data, image.nbytes, ranks, len(ranks), state.num_launches, 1, executable.timeout, seed,
        ctypes.byref(status), ctypes.byref(state.counts), fault, FAULT_BYTES)
    if code:
        state.forget()
    if code == 2:
        raise LaunchError(f"the kernel breaks a rule of the hardware (seed {seed}): {fault.value.decode()}")
    if code:
        raise make_error(status, image, plan=state.counts.plan)
    _copy_outputs(plans[state.counts.plan], flows[state.counts.plan], placed, executable.flow)


def _placed_as(flow: Taskflow, executable: Executable[EmulatorState], placed: Placed) -> Placed:
    """Returns the buffers of another plan; inputs and outputs of known size lie where they are placed already."""
    mine, places = executable.flow, Places(flow)
    inputs = [[placed.array(rank, b) for b in mine.inputs] for rank in range(mine.ep_size)]
    results = {theirs: [placed.array(rank, b) for rank in range(mine.ep_size)]
               for theirs, b in zip(flow.outputs, mine.outputs, strict=True) if theirs in places.arrays}
    return Placed(places, executable.state.pool, inputs, placed.received, False, results)


def _copy_outputs(placed: Placed, flow: Taskflow, to: Placed, of: Taskflow) -> None:
    """Copies outputs from the buffers of one plan to the buffers of another."""
    for rank in range(flow.ep_size if placed is not to else 0):
        for theirs, mine in zip(flow.outputs, of.outputs, strict=True):
            np.copyto(to.array(rank, mine), placed.array(rank, theirs))


def _launch_rank(executable: Executable[EmulatorState], link: Link, placed: Placed, num_tokens: int) -> None:
    """Launches this rank's cores, with counters that begin at 0; other ranks write to this rank's heap."""
    state, image = executable.state, executable.image
    arrays, addresses = placed.ranks()[0], placed.addresses[0]
    check_main_gradients(executable.flow, arrays, executable.target.name)
    kept = Kept(*(link.pool.zeros(a.shape[1:], a.dtype) for a in (state.counters, state.targets, state.tables)))
    kept.tables[...] = -1
    sizes = [max(1, len(a)) * a.shape[1] * a.itemsize for a in arrays]  # at least one row, which no task reads
    symmetric = state.symmetric[:len(arrays)]  # of the one plan's buffers
    offsets = [link.offset_of(place) if shared else -1 for place, shared in zip(addresses, symmetric, strict=True)]
    for b in np.flatnonzero(symmetric):
        if offsets[b] < 0:
            raise make_error(Status(code=Code.NOT_SHARED, rank=link.rank, value=b), image)
    told = np.array([*(link.offset_of(address(a)) for a in (kept.counters, kept.tables)), *offsets, *sizes], np.int64)
    mine = Rank()
    alive = state.fill(mine, addresses, sizes, kept, num_tokens)
    launch = Launch(image.ctypes.data, image.nbytes, ctypes.pointer(mine), 1, executable.timeout, next(SEEDS),
                    ctypes.pointer(state.counts))
    run_rank = known(ctypes.cast(native.load().hpmoe_emulator_run_rank, ctypes.c_void_p).value)
    link.launch_by(run_rank, ctypes.addressof(launch), executable, told, (placed, kept, alive))


def _check_untimed(trace: np.ndarray | None) -> None:
    if trace is not None:
        raise ArgumentError("hpmoe.measure: the emulator of an NPU has no times; measure the cpu target, or hpmoe.simulate")


EMULATOR = EmulatorTarget()
register_target(EMULATOR)
