"""Memory of a staged function: the bytes that its plans take, exactly, for the rows that the ranks receive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hpmoe.ir.layout import received_rows
from hpmoe.ir.taskflow import Taskflow
from hpmoe.runtime.running import Runner
from hpmoe.support.errors import check_argument
from hpmoe.tiling.shared_memory import memory_bytes

MIB = 2 ** 20


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of all ranks together that are held while one kernel runs.

    Attributes:
        inputs: what the caller gives: arguments, in the backward pass those that it reads, and cotangents.
        outputs: what it returns: results, in the backward pass gradients.
        saved: values that the forward pass keeps for the backward one.
        temporaries: the rest, sharing memory by lifetime.
        apart: what the temporaries would take without sharing.
    """

    inputs: int
    outputs: int
    saved: int
    temporaries: int
    apart: int

    @property
    def peak(self) -> int:
        return self.inputs + self.outputs + self.saved + self.temporaries


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What a staged function takes: called without a gradient (inference), and forward and backward under one.

    Attributes:
        name: of the function, with its transforms.
        ranks: how many ranks the bytes are of.
        inference, forward, backward: a MemoryUse of each kernel.
    """

    name: str
    ranks: int
    inference: MemoryUse
    forward: MemoryUse
    backward: MemoryUse

    @property
    def saved(self) -> int:
        """Bytes held between the forward and the backward pass."""
        return self.forward.saved

    @property
    def training_peak(self) -> int:
        """The most bytes taken by a forward and a backward pass beyond what the caller gives."""
        after = self.forward.outputs + self.forward.saved
        return after + max(self.forward.temporaries, self.backward.outputs + self.backward.temporaries)

    def __str__(self) -> str:
        fields = [f.name for f in dataclasses.fields(MemoryUse)] + ["peak"]
        lines = [self.name, f"MiB of {self.ranks} rank{'s' * (self.ranks > 1)}" .ljust(18)
                 + "".join(f"{name:>13}" for name in fields)]
        for name in ("inference", "forward", "backward"):
            use = getattr(self, name)
            lines.append(f"  {name:<16}" + "".join(f"{getattr(use, f) / MIB:>13.2f}" for f in fields))
        return "\n".join(lines)

    __repr__ = __str__


def memory_report(runner: Runner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MemoryReport:
    """The MemoryReport of a Runner's function for arguments like `args`: for their ids, or any routing without arrays."""
    traced, arrays, buckets = runner.planned(args, kwargs)
    lin, own = traced.linearized, len(traced.program.outputs)
    kept = None if arrays is None else [[mine[i] for i in lin.kept_inputs] for mine in arrays]
    num_saved = len(lin.forward.outputs) - own

    def use(program: Any, arrays: Any, is_saved: Any) -> MemoryUse:
        ir = runner.plans.plan(program, buckets)
        flow = getattr(ir, "flow", ir)
        check_argument(isinstance(flow, Taskflow), "memory", "f", "at the level of programs", "staged by tile_partition")
        return memory_use(flow, arrays, is_saved(flow))

    first = len(lin.kept_inputs)
    forward = use(lin.forward, arrays, lambda flow: flow.outputs[own:])
    name = str(runner.plans.plan(lin.forward, buckets)).splitlines()[0]
    return MemoryReport(name, runner.plans.mesh.ep_size, use(traced.program, arrays, lambda flow: ()), forward,
                        use(lin.backward, kept, lambda flow: flow.inputs[first:first + num_saved]))


def memory_use(flow: Taskflow, arrays: Sequence[Sequence[Any]] | None, saved: Sequence[int] = ()) -> MemoryUse:
    """Bytes of a taskflow's buffers on all ranks.

    Args:
        flow: at any stage.
        arrays: for each rank the program's inputs, or as many of them as hold the ids; where None, as for the most rows
            that the plan is for.
        saved: buffers that count as saved.
    """
    rows = received_rows(flow, arrays, None) if arrays is not None else \
        [[plan.max_rows for plan in flow.routes]] * flow.ep_size
    kept = {flow.buffers[b].storage for b in saved}
    sums = dict.fromkeys(("input", "output", "saved", "temporary", "apart"), 0)
    apart = flow.replace(buffers=tuple(dataclasses.replace(b, memory=-1) for b in flow.buffers))
    for received in rows:
        for b, size in memory_bytes(flow, received).items():
            sums["saved" if b in kept else flow.buffers[b].role] += size
        sums["apart"] += sum(n for b, n in memory_bytes(apart, received).items() if flow.buffers[b].role == "temporary")
    return MemoryUse(sums["input"], sums["output"], sums["saved"], sums["temporary"], sums["apart"])

