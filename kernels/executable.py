"""Executable: a packed taskflow with its counters, launched on the CPU with one native call."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.layout import received_rows
from hpmoe.ir.taskflow import Taskflow
from hpmoe.ir.taskflow_text import event_name, task_name
from hpmoe.kernels.buffers import Placed, Places
from hpmoe.kernels.cpu.launch import Demands, Launches, launch, sealed
from hpmoe.kernels.link import Link
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.packing import pack
from hpmoe.routing.routing import rows_by_counts
from hpmoe.runtime.targets import find_target, register_target
from hpmoe.support.errors import LaunchError, check_argument
from hpmoe.support.known import known
from hpmoe.support.locks import Lock, new_lock
from hpmoe.timelines.measure import new_record

POOL = Pool()


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """The persistent kernel of one direction: its taskflow, packed once, and the counters that live between launches.

    Attributes:
        flow: what was packed.
        image: uint8, read by every rank; nobody can write to it, so that what was once checked holds.
        timeout: seconds without any task ending, on any rank, after which a wait ends the launch with an error.
        provenance: transforms applied, as printed.
        others: the taskflows of the other plans in the image, where a launch takes one of several.
    """

    flow: Taskflow
    image: np.ndarray
    timeout: float
    provenance: tuple[str, ...]
    counters: np.ndarray
    bases: np.ndarray
    lock: Lock = dataclasses.field(default_factory=new_lock)
    others: tuple[Taskflow, ...] = ()

    level = "kernel"
    target = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image", sealed(self.image))

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def flows(self) -> tuple[Taskflow, ...]:
        """Of all plans in the image."""
        return self.flow, *self.others

    def reaches(self, link: Link) -> bool:
        """Whether a launch of this process's rank gets to the others through a link, that of all ranks being none then."""
        return link.size == self.flow.ep_size

    def replace(self, **changes: object) -> Executable:
        return dataclasses.replace(self, **changes)

    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            trace: np.ndarray | None = None, keep: list[list[np.ndarray]] | None = None,
            into: Mapping[int, Sequence[np.ndarray]] | None = None, received: Sequence[Sequence[int]] | None = None,
            seed: int | None = None) -> list[list[np.ndarray]]:
        """Launches all workers of all ranks once and returns when the last has left.

        Args:
            inputs: for each rank, one array for each program input.
            num_tokens: tokens of each rank; all by default.
            trace: int64 [ep, num_tasks, 3], filled with the nanoseconds at which each task of the image began to wait,
                began its body and had signalled; where None, `hpmoe.measure` may ask for one.
            keep: where given, receives every buffer of every rank.
            into: for some outputs, by position, the array of each rank to write them to.
            received: for each route by ids, the rows that each rank receives; counted from the ids if None.
            seed: of the order in which the reference interpreter runs the tasks; the kernel runs them if None.

        Returns:
            For each rank, the list of outputs.

        Raises:
            LaunchError: a wait ran out of time, or the launch was interrupted; the text names task and event.
        """
        flow = self.flow
        if seed is not None:
            return flow.run(inputs, num_tokens, seed=seed)
        results = {flow.outputs[j]: arrays for j, arrays in (into or {}).items()}
        given = None if num_tokens is None else [int(n) for n in num_tokens]
        rows = received_rows(flow, inputs, given, received)
        placed = Placed(self._places, POOL, inputs, rows, given is not None, results)
        lengths = [self._num_tokens] * flow.ep_size if given is None else given
        trace, moved = new_record(flow) if trace is None else (trace, None)
        with self.lock:
            try:
                self._launch(placed, lengths, trace, moved)
            except LaunchError as error:
                raise self._explained(error) from None
        if keep is not None:
            keep.extend(placed.ranks())
        return [[flow.buffers[b].user_view(placed.array(rank, b)) for b in flow.outputs] for rank in range(flow.ep_size)]

    def run_rank(self, link: Link, inputs: Sequence[np.ndarray], counts: Sequence[np.ndarray],
                 num_tokens: Sequence[int] | None = None, trace: np.ndarray | None = None,
                 into: Mapping[int, np.ndarray] | None = None) -> list[np.ndarray]:
        """Launches this process's rank, while the other processes launch theirs.

        Args:
            link: to the other ranks.
            inputs: of this rank, one array for each program input.
            counts: for each route by ids, int [ep, ep * num_local_experts], the rows of each rank for each expert.
            num_tokens: tokens of each rank; all by default.
            trace, into: as of `run`; of the trace this rank's part is filled.

        Returns:
            This rank's outputs.

        Raises:
            LaunchError: as `run`, and where another rank fails, dies, does not come or launches another kernel.
        """
        flow, me = self.flow, link.rank
        check_argument(link.size == flow.ep_size, "launch", "link.size", link.size, f"{flow.ep_size}, as the kernel")
        results = {flow.outputs[j]: [array] for j, array in (into or {}).items()}
        routes = (plan for plan in flow.routes if plan.once_of < 0)
        received = [rows_by_counts(np.sum(c, axis=0), flow.ep_size, plan.alignment)
                    for c, plan in zip(counts, routes, strict=True)]
        rows = received_rows(flow, [inputs], num_tokens, received)[me]
        placed = Placed(self._places, link.pool, [inputs], [rows], num_tokens is not None, results)
        length = self._num_tokens if num_tokens is None else int(num_tokens[me])
        told = np.concatenate([np.zeros(0, np.int32), *(np.asarray(c, np.int32).reshape(-1) for c in counts)])
        trace, moved = new_record(flow, link) if trace is None else (trace, None)
        try:
            self._launch_rank(link, placed, told, length, (trace, moved))
        except LaunchError as error:
            raise self._explained(error) from None
        return [flow.buffers[b].user_view(placed.array(0, b)) for b in flow.outputs]

    @functools.cached_property
    def image_key(self) -> int:
        """Alike for kernels that are alike, on any process."""
        return int.from_bytes(hashlib.blake2b(self.image.tobytes(), digest_size=8).digest(), "little")

    def _launch(self, placed: Placed, num_tokens: list[int], trace: np.ndarray | None, moved: np.ndarray | None) -> None:
        if self._demands is None or trace is not None:
            return launch(self.image, placed.read_ranks(), num_tokens, self.counters, self.bases, self.timeout, trace, moved)
        self._demands.check_num_tokens(num_tokens)
        self._launches.launch(placed.addresses, placed.received, num_tokens, self.timeout)

    def _launch_rank(self, link: Link, placed: Placed, counts: np.ndarray, num_tokens: int,
                     record: Sequence[np.ndarray | None]) -> None:
        link.launch(self, placed.addresses[0], placed.received[0], counts, num_tokens, record, placed)

    @functools.cached_property
    def _demands(self) -> Demands | None:
        """What the image demands of a launch, where every launch of this taskflow meets it; else None."""
        demands = Demands.read(self.image)
        if demands is None or demands.counters_fault(self.counters, self.bases):
            return None
        buffers = [(b.cols, b.num_rows or 0, dtype) for b, dtype in zip(self.flow.buffers, self._places.dtypes, strict=True)]
        return demands if demands.ep_size == self.flow.ep_size and demands.buffers == buffers else None

    @functools.cached_property
    def _launches(self) -> Launches:
        return Launches(self.image, self.counters, self.bases)

    @functools.cached_property
    def _places(self) -> Places:
        return Places(self.flow)

    @functools.cached_property
    def _num_tokens(self) -> int:
        return max([r.num_tokens for r in self.flow.routes] or [op.domain.clipped_rows for op in self.flow.ops], default=0)

    def _explained(self, error: LaunchError) -> LaunchError:
        """The same error with the kernel, where it does not name it, and the task and event as the taskflow's text does."""
        status = getattr(error, "status", {})
        task, event, plan = (status.get(what, absent) for what, absent in (("task", -1), ("event", -1), ("plan", 0)))
        flow = self.flows[plan]
        order = np.concatenate(flow.queues)
        names = []
        if self.others and max(task, event) >= 0:
            names.append(f"the launch took plan {plan} of {len(self.flows)}, likely rows {flow.routes[0].likely_rows}")
        if 0 <= task < len(order):
            t = int(order[task])
            names.append(f"task t{t} is {task_name(flow, t)}")
        if 0 <= event < len(flow.events):
            names.append(f"event {event} is {event_name(flow, event)}")
        said = str(error) if self.name in str(error) else f"{self.name}: {error}"
        explained = LaunchError("\n  ".join([said, *names]))
        explained.status = status
        return explained

    def __reduce__(self) -> tuple[object, ...]:
        """A copy is compiled anew, with counters of its own."""
        return _compiled, (self.flows, self.target, self.timeout, self.provenance)

    def __str__(self) -> str:
        flow = str(self.flow).splitlines()
        head = " | ".join([f"# {self.name}", *self.provenance])
        size = (f"kernel {self.target}  image={len(self.image)} bytes  queues={len(self.flow.queues)} for each of "
                f"{self.flow.ep_size} ranks")
        if self.others:
            likely = ", ".join(str(of_plan.routes[0].likely_rows) for of_plan in self.flows)
            size += f"\nplans for likely rows {likely}, of which a launch takes one; the first:"
        return "\n".join([head, size, *flow[1:]])

    __repr__ = __str__


def compile_cpu(flow: Taskflow, timeout: float) -> Executable:
    """Packs a Taskflow that has queues for the CPU."""
    shape = (flow.ep_size, len(flow.events))
    return Executable(flow, pack(flow), timeout, flow.provenance, np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def _compiled(flows: Sequence[Taskflow], target: str, timeout: float, provenance: tuple[str, ...]) -> Executable:
    found = find_target(target)
    kernels = [found.compiler(flow, timeout=timeout).replace(provenance=provenance) for flow in flows]
    return kernels[0] if len(kernels) == 1 else known(found.of_plans)(kernels)


register_target("cpu", compile_cpu)
