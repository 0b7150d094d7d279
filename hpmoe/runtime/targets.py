"""Target: compiles the kernels of fuse_persistent(target=) and launches them. Executable: such a kernel.

Each target has a folder of its own, with its capability table, and registers itself by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.ir.taskflow_text import event_name, task_name
from hpmoe.ranks.link import Link
from hpmoe.runtime.bodies import Bodies
from hpmoe.support.errors import LaunchError, check_argument, is_name
from hpmoe.support.notebook import NotebookText
from hpmoe.support.trees import PyTree

State = TypeVar("State")
Arrays = Sequence[np.ndarray]


class Target(ABC, Generic[State]):
    """A target of fuse_persistent.

    Attributes:
        name: the name that fuse_persistent(target=) takes.
        bodies: operations that the kernel has code for; `compile` refuses others by name.
        on_device: True if each rank is a process whose tensors stay on its device. Otherwise inputs and outputs are arrays.
    """

    name: str
    bodies: Bodies
    on_device: bool = False

    @abstractmethod
    def compile(self, flows: Sequence[Taskflow], timeout: float) -> Executable[State]:
        """Returns the kernel of one program.

        Args:
            flows: taskflows with queues, the plans of the program for rising numbers of received rows. A launch takes one of
                them; a target whose kernel cannot choose compiles the first.
            timeout: seconds without progress after which a launch fails.

        Raises:
            ArgumentError: the target cannot run a taskflow.
        """

    @abstractmethod
    def run(self, executable: Executable[State], inputs: Sequence[Arrays], num_tokens: Sequence[int] | None,
            into: Mapping[int, Arrays], received: Sequence[Sequence[int]] | None) -> list[list[np.ndarray]]:
        """Launches a kernel; see Executable.run."""

    def new_state(self, executable: Executable[State]) -> State:
        """Returns what the launches of an executable share, such as counters; None by default."""
        return cast(State, None)

    def missing(self) -> list[str]:
        """Returns what this machine lacks of what the target needs, one sentence each."""
        return []

    def reaches(self, executable: Executable[State], link: Link) -> bool:
        """Returns whether `run_rank` can launch one rank while other processes launch theirs.

        Otherwise every process gets the inputs of all ranks and calls `run`.
        """
        return False

    def run_rank(self, executable: Executable[State], link: Link, inputs: Arrays, counts: Arrays,
                 num_tokens: Sequence[int] | None, into: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """Launches this process's rank; see Executable.run_rank.

        Raises:
            LaunchError: the target launches all ranks in one process, as `reaches` says.
        """
        raise LaunchError(f"{executable.name}: run_rank of target {self.name!r} launches no single rank; call run with the "
                          "inputs of all ranks")

    def __reduce__(self) -> tuple[object, ...]:
        return find_target, (self.name,)


@dataclasses.dataclass(frozen=True, eq=False)
class Executable(NotebookText, Generic[State]):
    """The persistent kernel of one direction of a function.

    Attributes:
        target: Target that launches it.
        flows: the taskflows of its plans; a launch takes one of them.
        timeout: seconds without any task ending, on any rank, after which a launch fails.
        image: uint8, the packed taskflows, read-only, so that what was checked once holds; empty if the target needs none.
        provenance: transforms applied, as printed.
        state: state that its launches share, made by the target.
    """

    target: Target[State]
    flows: tuple[Taskflow, ...]
    timeout: float
    image: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint8))
    provenance: tuple[str, ...] = ()
    state: State = dataclasses.field(init=False)

    level = "kernel"

    def __post_init__(self) -> None:
        image = self.image if isinstance(self.image.base, bytes) else np.frombuffer(self.image.tobytes(), np.uint8)
        provenance = self.provenance or (*self.flow.provenance, f"fuse_persistent({self.target.name})")
        object.__setattr__(self, "image", image)
        object.__setattr__(self, "provenance", provenance)
        object.__setattr__(self, "state", self.target.new_state(self))

    @property
    def flow(self) -> Taskflow:
        """The taskflow of the first plan."""
        return self.flows[0]

    @property
    def name(self) -> str:
        return self.flow.name

    @functools.cached_property
    def image_key(self) -> int:
        """A number that processes with equal images agree on."""
        return int.from_bytes(hashlib.blake2b(self.image.tobytes(), digest_size=8).digest(), "little")

    @functools.cached_property
    def num_tokens(self) -> int:
        """Tokens of a rank that brings as many as the kernel is planned for."""
        flow = self.flow
        return max([r.num_tokens for r in flow.routes] or [op.domain.clipped_rows for op in flow.ops], default=0)

    def replace(self, **changes: PyTree) -> Executable[State]:
        """Returns an executable with other fields and a state of its own."""
        return dataclasses.replace(self, **changes)

    def run(self, inputs: Sequence[Arrays], num_tokens: Sequence[int] | None = None,
            into: Mapping[int, Arrays] | None = None, received: Sequence[Sequence[int]] | None = None,
            seed: int | None = None) -> list[list[np.ndarray]]:
        """Launches the kernel for all ranks whose inputs this process has.

        Args:
            inputs: for each rank, one array for each program input; on a device, the tensors of this process's rank.
            num_tokens: real tokens of each rank; all by default.
            into: for some outputs, by position, the array of each rank to write them to. A target may return other arrays;
                the caller copies them. A device writes to `into`.
            received: for each route by ids, the rows that each rank receives; counted from the ids if None.
            seed: of the order in which the reference interpreter runs the tasks; the kernel runs them if None.

        Returns:
            For each rank, the list of outputs.

        Raises:
            LaunchError: a wait ran out of time, or the launch was interrupted; the text names task and event.
        """
        if seed is not None:
            return self.flow.run(inputs, num_tokens, seed=seed)
        return self.target.run(self, inputs, num_tokens, into or {}, received)

    def reaches(self, link: Link) -> bool:
        """Returns whether `run_rank` can launch this process's rank among those of a link."""
        return self.target.reaches(self, link)

    def run_rank(self, link: Link, inputs: Arrays, counts: Arrays, num_tokens: Sequence[int] | None = None,
                 into: Mapping[int, np.ndarray] | None = None) -> list[np.ndarray]:
        """Launches this process's rank, while the other processes launch theirs.

        Args:
            link: Link to the other ranks.
            inputs: this rank's array for each program input.
            counts: for each route by ids, int [ep, ep * num_local_experts], the rows of each rank for each expert.
            num_tokens: real tokens of each rank; all by default.
            into: for some outputs, by position, the array to write them to.

        Returns:
            This rank's outputs.

        Raises:
            LaunchError: as `run`, and if another rank fails, dies, does not launch or launches another kernel.
        """
        return self.target.run_rank(self, link, inputs, counts, num_tokens, into or {})

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles what a copy is compiled from; the copy has a state of its own."""
        return _compiled, (self.target, self.flows, self.timeout, self.provenance)

    def __str__(self) -> str:
        flow = str(self.flow).splitlines()
        head = " | ".join([f"# {self.name}", *self.provenance])
        size = (f"kernel {self.target.name}  image={len(self.image)} bytes  queues={len(self.flow.queues)} for each of "
                f"{self.flow.ep_size} ranks")
        if len(self.flows) > 1:
            expected = ", ".join(str(of_plan.routes[0].expected_rows) for of_plan in self.flows)
            size += f"\nplans for expected rows {expected}, of which a launch takes one; the first:"
        return "\n".join([head, size, *flow[1:]])

    __repr__ = __str__


def _compiled(target: Target[State], flows: Sequence[Taskflow], timeout: float,
              provenance: tuple[str, ...]) -> Executable[State]:
    return target.compile(flows, timeout).replace(provenance=provenance)


def explained(error: LaunchError, flows: Sequence[Taskflow]) -> LaunchError:
    """Returns the error with the names of kernel, task and event as the taskflow's text has them."""
    status = getattr(error, "status", None) or {}
    task, event, plan = (status.get(what, absent) for what, absent in (("task", -1), ("event", -1), ("plan", 0)))
    flow = flows[plan]
    order = np.concatenate(flow.queues)
    names = []
    if len(flows) > 1 and max(task, event) >= 0:
        names.append(f"the launch took plan {plan} of {len(flows)}, expected rows {flow.routes[0].expected_rows}")
    if 0 <= task < len(order):
        t = int(order[task])
        names.append(f"task t{t} is {task_name(flow, t)}")
    if 0 <= event < len(flow.deps.events):
        names.append(f"event {event} is {event_name(flow, event)}")
    said = str(error) if flow.name in str(error) else f"{flow.name}: {error}"
    out = LaunchError("\n  ".join([said, *names]))
    out.status = status
    return out


_TARGETS: dict[str, Target] = {}


def register_target(target: Target) -> None:
    """Makes a target known to fuse_persistent(target=) by its name."""
    _TARGETS[target.name] = target


def target_names() -> tuple[str, ...]:
    return tuple(sorted(_TARGETS))


def find_target(name: str) -> Target:
    """Returns the target of a name. Raises ArgumentError, listing the known names, for another name."""
    check_argument(is_name(name, _TARGETS), "fuse_persistent", "target", repr(name), f"one of {', '.join(target_names())}")
    return _TARGETS[name]


def check_usable(name: str) -> None:
    """Raises ArgumentError unless the target is known and this machine has all it needs."""
    missing = find_target(name).missing()
    check_argument(not missing, "fuse_persistent", "target", repr(name), "a target that this machine can run",
                   "Missing here:\n  " + "\n  ".join(missing))
