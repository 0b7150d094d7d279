"""Mesh and Machine: the ranks that run a program, and the hardware of one rank. Both are plain data."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from hpmoe.machines.constant import Constant
from hpmoe.machines.hardware import L2, MOST_RATE, Cube, Host, Link, Memory, Operators, Sync, Vector, check_constant
from hpmoe.machines.npu_bins import BINS, FLOPS_PER_CYCLE, bin_name
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import nearest, suggests_keywords


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Mesh:
    """The ep * tp ranks that run one per-rank function together: `tp` ranks for each of `ep` equal parts of the experts.

    `hpmoe.spmd`, `hpmoe.trace` and `lower` of a staged function take a mesh.
    Part g is the experts g*E_local .. (g+1)*E_local-1. With tp=1 rank g holds the whole experts of part g. Otherwise rank
    g*tp + s holds shard s of each expert of part g: a tp-th of the columns of gate and up, and the matching rows of down.

    Attributes:
        ep: number of parts of the experts (the expert-parallel size).
        tp: number of ranks that share one part (the tensor-parallel size).
        nodes: number of nodes. Each num_ranks / nodes consecutive ranks are one node, with faster links inside a node than
            between nodes. None means the same as 1.

    Raises:
        ArgumentError: ep or tp is not a positive int, or nodes does not divide ep * tp.

    Example:
        >>> Mesh(ep=4), Mesh(ep=16, nodes=2), Mesh(ep=16, nodes=2).node_size, Mesh(ep=4, tp=2).num_ranks
        (Mesh(ep=4), Mesh(ep=16, nodes=2), 8, 8)
    """

    ep: int = 1
    tp: int = dataclasses.field(default=1, kw_only=True)
    nodes: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("ep", "tp"):
            check_argument(is_int(getattr(self, name)), "hpmoe.Mesh", name, repr(getattr(self, name)), "a positive int")
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.nodes is not None:
            is_divisor = is_int(self.nodes) and self.num_ranks % int(self.nodes) == 0
            check_argument(is_divisor, "hpmoe.Mesh", "nodes", repr(self.nodes),
                           f"a divisor of {'ep' if self.tp == 1 else 'ep * tp'}, {self.num_ranks}, or None")
            object.__setattr__(self, "nodes", int(self.nodes))

    @property
    def num_ranks(self) -> int:
        """Number of ranks, ep * tp."""
        return self.ep * self.tp

    @property
    def node_size(self) -> int | None:
        """Number of consecutive ranks of a node; None if `nodes` is None."""
        return None if self.nodes is None else self.num_ranks // self.nodes

    def __repr__(self) -> str:
        axes = {"ep": self.ep, **({"tp": self.tp} if self.tp > 1 else {}), **({"nodes": self.nodes} if self.nodes else {})}
        return f"{type(self).__name__}({', '.join(f'{name}={size}' for name, size in axes.items())})"


def as_mesh(who: str, mesh: Mesh | None) -> Mesh:
    """Returns an argument `mesh`, or a Mesh of one rank if it is None; raises ArgumentError if it is something else."""
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh or None")
    return mesh or Mesh()


@dataclasses.dataclass(frozen=True)
class Body:
    """Measured time of one kind of task: its share of the machine's rate, and the loss of small tasks.

    A task of r rows, c columns and, of a matmul, k products for each sum takes as long as one of (r + rows)(c + cols)(k +
    inner) would at `share` of the machine's rate: of cube.flops_per_us, or of vector.bytes_per_us for the bytes that all
    other tasks read and write. Rows of a task that sums over rows are those that it sums.

    Attributes:
        kind: the opcode, with the function of a MAP or ROW_REDUCE, and "T" where the second operand of a GMM is transposed.
        dtype: dtype of the rows that the task reads.
        share, rows, cols, inner: numbers of the formula above.
        most_rows: most rows of a task that is measured here, a matmul with another loop for few rows; 0 for any number.

    Raises:
        ArgumentError: kind or dtype is no str, share not a number from 1e-30 to 1e30, or another one not from 0 to 1e30.
    """

    kind: str
    dtype: str
    share: float
    rows: float = 0.0
    cols: float = 0.0
    inner: float = 0.0
    most_rows: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 1 / MOST_RATE if field.name == "share" else 0.0
            is_right = isinstance(value, str) if field.type == "str" else is_number(value) and least <= value <= MOST_RATE
            check_argument(is_right, "hpmoe.machines.machine.Body", field.name, repr(value),
                           "a str" if field.type == "str" else f"a number from {least:g} to {MOST_RATE:g}")


LEAST_SHARED = 0.3  # of the words of two names that mean one constant
GROUPS = {group.__name__.lower(): group for group in (Cube, Vector, L2, Memory, Link, Sync, Host, Operators)}


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Machine:
    """A model of the hardware of one rank: workers, memory, links and costs, which transforms and the simulator read.

    Constants are in groups; rates are per microsecond. A constant is named by its group and field, such as
    "link.bytes_per_us", in machine files, in `replace` and in what commands print.

    Attributes:
        name: printed in the provenance of a Taskflow.
        num_aic: number of matrix workers, each with one queue.
        num_aiv: number of vector and communication workers; 0 if each of the num_aic workers takes both kinds of tasks.
        tile_rows, tile_cols: default tile of a task.
        cube, vector, l2, memory, link, sync, host, operators: groups of constants, see `hpmoe.machines.hardware`.
        bodies: measured kinds of tasks; other kinds take the time that the groups give.
        constants: unit, source and range of constants, by their names; not compared between machines.

    Raises:
        ArgumentError: a count is not a positive int, a rate not a number from 1e-30 to 1e30, a cost not a number from 0 to
            1e30, or cube.efficiency above 1.

    Example:
        >>> import hpmoe
        >>> slower = hpmoe.machines.ascend_a3.replace({"link.bytes_per_us": hpmoe.machines.ascend_a3.link.bytes_per_us / 2})
        >>> slower.link.bytes_per_us, slower.num_queues, slower.queue_name(0)
        (86000.0, 72, 'aic.0')
    """

    name: str
    num_aic: int
    num_aiv: int
    tile_rows: int
    tile_cols: int
    cube: Cube
    vector: Vector
    l2: L2
    memory: Memory
    link: Link
    sync: Sync
    host: Host
    operators: Operators = Operators()
    bodies: tuple[Body, ...] = ()
    constants: tuple[tuple[str, Constant], ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                check_constant(field.name, "int", value)
            elif field.name in GROUPS:
                kind = GROUPS[field.name]
                self._check(isinstance(value, kind), field.name, f"an hpmoe.machines.hardware.{kind.__name__}")
        self._check(isinstance(self.name, str) and self.name.isprintable(), "name", "a str of printable characters")
        self._check(isinstance(self.bodies, tuple) and all(isinstance(b, Body) for b in self.bodies), "bodies",
                    "a tuple of hpmoe.machines.machine.Body")

    def _check(self, condition: bool, name: str, expected: str) -> None:
        if not condition:
            check_argument(False, "hpmoe.Machine", name, repr(getattr(self, name)), expected)

    def __getitem__(self, name: str) -> float:
        """Returns a constant by its name.

        Raises:
            ArgumentError: there is no such constant.

        Example:
            >>> import hpmoe
            >>> hpmoe.machines.ascend_a3["link.bytes_per_us"] == hpmoe.machines.ascend_a3.link.bytes_per_us
            True
        """
        check_name("hpmoe.Machine", name)
        return operator.attrgetter(name)(self)

    def replace(self, constants: Mapping[str, object] = MappingProxyType({}), /, **fields: object) -> Machine:
        """Returns a machine with other constants, given as a dict by their names, or with other fields.

        A constant that changes loses its source and range.

        Raises:
            ArgumentError: there is no such constant or field, or a value is out of range.

        Example:
            >>> import hpmoe
            >>> slow = hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": 1e6, "link.node_size": 8}, name="slow",
            ...                                         num_aiv=4)
            >>> slow.memory.bytes_per_us, slow.link.node_size, slow.num_queues
            (1000000.0, 8, 28)
        """
        changes, groups = {**constants, **fields}, dict[str, dict[str, object]]()
        for name in changes:
            check_name("hpmoe.Machine.replace", name, (*CONSTANTS, *(f.name for f in dataclasses.fields(self))))
        for name in [n for n in changes if "." in n]:
            group, _, field = name.partition(".")
            groups.setdefault(group, {})[field] = changes[name]
        kept = {name: value for name, value in changes.items() if "." not in name}
        known = tuple((name, constant) for name, constant in self.constants
                      if name not in changes and name.partition(".")[0] not in kept)
        made = dataclasses.replace(self, **{"constants": known, **kept})
        return dataclasses.replace(made, **{name: dataclasses.replace(getattr(made, name), **values)
                                            for name, values in groups.items()})

    def of_bin(self, name: str) -> Machine:
        """Returns this NPU with the cores, clock and L2 of a named bin.

        Raises:
            ArgumentError: there is no such bin, or this is no NPU.

        Example:
            >>> import hpmoe
            >>> b3 = hpmoe.machines.ascend_a2.of_bin("910B3")
            >>> b3.name, b3.num_aic, b3.num_aiv
            ('ascend_a2.910B3', 20, 40)
        """
        check_argument(not self.unified, "hpmoe.Machine.of_bin", "the machine", f"{self.name!r}, a CPU", "an NPU",
                       "Write hpmoe.machines.ascend_a2.of_bin(name) or hpmoe.machines.ascend_a3.of_bin(name).")
        check_argument(isinstance(name, str) and bin_name(name) in BINS, "hpmoe.Machine.of_bin", "name", repr(name),
                       f"one of {', '.join(BINS)}")
        sold = BINS[bin_name(name)]
        return self.replace({"cube.flops_per_us": FLOPS_PER_CYCLE * sold.ghz * 1e3, "l2.bytes": sold.l2_bytes},
                            name=f"{self.name}.{bin_name(name)}", num_aic=sold.num_aic, num_aiv=2 * sold.num_aic)

    @property
    def unified(self) -> bool:
        """True if every worker runs both kinds of tasks."""
        return self.num_aiv == 0

    @property
    def num_queues(self) -> int:
        return self.num_aic + self.num_aiv

    def body(self, kind: str, dtype: str, rows: int = 0) -> Body | None:
        """Returns the measurement of a kind of task, or of its nearest dtype or function. With `rows`, prefers a
        measurement of tasks of few rows that covers them."""
        found = [b for b in self.bodies if b.kind.partition(" ")[0] == kind.partition(" ")[0]
                 and (0 < rows <= b.most_rows or rows == b.most_rows == 0)]
        return max(found, key=lambda b: (b.kind == kind, b.dtype == dtype), default=None)

    def queues_of(self, unit: str) -> range:
        """Returns the queue numbers that take tasks of `unit`, "aic" or "aiv"."""
        if self.unified or unit == "aic":
            return range(self.num_aic)
        return range(self.num_aic, self.num_queues)

    def queue_name(self, queue: int) -> str:
        """Returns the printed name of a queue: "worker.0", "aic.3" or "aiv.17"."""
        if self.unified:
            return f"worker.{queue}"
        return f"aic.{queue}" if queue < self.num_aic else f"aiv.{queue - self.num_aic}"


CONSTANTS = {f.name: f for f in dataclasses.fields(Machine) if f.type == "int"} | {
    f"{name}.{f.name}": f for name, group in GROUPS.items() for f in dataclasses.fields(group)}
OPTIONAL = {name for name, field in CONSTANTS.items() if field.default is not dataclasses.MISSING}


def nearest_constant(name: str) -> str | None:
    """Returns the constant whose name shares the most words with another name, or None.

    Example:
        >>> nearest_constant("worker_link_bytes_per_us"), nearest_constant("matmul_efficiency"), nearest_constant("color")
        ('link.worker_bytes_per_us', 'cube.efficiency', None)
    """
    words = set(re.split("[._]", name))
    shared = {known: len(words & w) / len(words | w) for known in CONSTANTS for w in [set(re.split("[._]", known))]}
    best = max(CONSTANTS, key=shared.__getitem__)
    return best if shared[best] > LEAST_SHARED else nearest(name, CONSTANTS)


def check_name(who: str, name: object, known: Collection[str] = CONSTANTS) -> None:
    """Raises ArgumentError, with the nearest constant, if a name is not known.

    Example:
        >>> check_name("hpmoe.Machine.replace", "memory_bytes_per_us")
        Traceback (most recent call last):
        ...
        hpmoe.ArgumentError: hpmoe.Machine.replace: 'memory_bytes_per_us' is unknown; it must be ...
    """
    if name not in known:
        near = nearest_constant(str(name))
        check_argument(False, who, repr(name), "unknown", "the name of a constant",
                       f"Did you mean {near!r}?" if near else "The command `hpmoe machine ascend_a3` prints all of them.")
