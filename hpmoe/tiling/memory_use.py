"""Memory of a function: the bytes that its taskflows take, exactly, for the rows that the ranks receive."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.layout import received_rows
from hpmoe.ir.program import Program, Var
from hpmoe.ir.stages import cut_at_routes
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.notebook import table_html
from hpmoe.tiling.shared_memory import memory_bytes, remote_memories

MIB = 2 ** 20
Arrays = Sequence[Sequence[np.ndarray]]  # for each rank, its arrays


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of all ranks together that are held while one kernel runs, or the launches of a function that computes ids.

    Attributes:
        inputs: bytes of the caller's arrays: arguments, in the backward pass those that it reads, and cotangents.
        outputs: bytes of results, in the backward pass of gradients.
        saved: values that the forward pass keeps for the backward one.
        temporaries: bytes of all other values, which share memory by lifetime.
        apart: bytes of the temporaries without sharing.
        symmetric: bytes among all these that other ranks write to. An NPU has them in the symmetric heap, and copies
            saved or returned values out of it.
    """

    inputs: int
    outputs: int
    saved: int
    temporaries: int
    apart: int
    symmetric: int

    @property
    def peak(self) -> int:
        return self.inputs + self.outputs + self.saved + self.temporaries


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Memory of a staged function: in inference, and forward and backward under a gradient.

    Attributes:
        name: name of the function, with its transforms.
        ranks: number of ranks whose bytes are added.
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
        """Most bytes that a forward and a backward pass take besides the caller's arrays."""
        after = self.forward.outputs + self.forward.saved
        return after + max(self.forward.temporaries, self.backward.outputs + self.backward.temporaries)

    def _rows(self) -> list[list[str]]:
        """Returns the cells of the table, the head first: MiB by kind, for each kernel."""
        fields = [f.name for f in dataclasses.fields(MemoryUse)] + ["peak"]
        rows = [[name, *(f"{getattr(getattr(self, name), f) / MIB:.2f}" for f in fields)]
                for name in ("inference", "forward", "backward")]
        return [[f"MiB of {self.ranks} rank{'s' * (self.ranks > 1)}", *fields], *rows]

    def __str__(self) -> str:
        head, *rows = self._rows()
        lines = [head[0].ljust(18), *(f"  {row[0]:<16}" for row in rows)]
        return "\n".join([self.name, *(first + "".join(f"{cell:>13}" for cell in row[1:])
                                       for first, row in zip(lines, (head, *rows), strict=True))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.name, self._rows())


def memory_use(program: Program, flows: Sequence[Taskflow], arrays: Arrays | None,
               kinds: Mapping[Var | int, str]) -> MemoryUse:
    """Returns the bytes of the launches of a program on all ranks; a value passed between launches is held until the last.

    Args:
        program: Program that is launched.
        flows: the Taskflow of each of its parts, at any stage.
        arrays: for each rank the program's inputs, or as many of them as hold the ids; where None, as for the most rows
            that the plans are for.
        kinds: other kinds of inputs, and of outputs by position: "saved".
    """
    launches, counted = [], set()
    for part, flow in zip(cut_at_routes(program), flows, strict=True):
        new = set(program.inputs).difference(counted)
        given = [kinds.get(v, "input") if v in new else "held" for v in part.program.inputs]
        made = [kinds.get(place, "output") for place in part.places]
        made += ["shared"] * (len(flow.outputs) - len(made))
        counted.update(part.program.inputs)
        launches.append(_bytes_by_kind(flow, arrays, dict(zip(
            (flow.buffers[b].storage for b in (*flow.inputs, *flow.outputs)), (*given, *made), strict=False))))
    total = sum(launches, collections.Counter())
    most = max(launch["temporary"] for launch in launches)
    return MemoryUse(total["input"], total["output"], total["saved"], most + total["shared"],
                     total["apart"] + total["shared"], total["symmetric"])


def _bytes_by_kind(flow: Taskflow, arrays: Arrays | None, kinds: Mapping[int, str]) -> collections.Counter[str]:
    """Returns bytes of buffers on all ranks by kind: temporary, apart (without sharing), symmetric, or one of `kinds`."""
    rows = received_rows(flow, arrays, None) if arrays is not None else \
        [[plan.max_rows for plan in flow.routes]] * flow.ep_size
    apart = flow.replace(buffers=tuple(dataclasses.replace(b, memory=-1) for b in flow.buffers))
    sums: collections.Counter[str] = collections.Counter()
    remote = remote_memories(flow)
    for received in rows:
        for b, size in memory_bytes(flow, received).items():
            sums[kinds.get(b, "temporary")] += size
            sums["symmetric"] += size if b in remote else 0
        sums["apart"] += sum(n for b, n in memory_bytes(apart, received).items() if b not in kinds)
    return sums
