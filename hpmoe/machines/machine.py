"""Mesh and Machine: the ranks that run a program, and the hardware of one rank. Both are plain data."""

from __future__ import annotations

import dataclasses

from hpmoe.machines.constant import Constant
from hpmoe.machines.npu_bins import BINS, FLOPS_PER_CYCLE, bin_name
from hpmoe.support.dtypes import BYTES
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords

MOST_QUEUES = 1 << 16
MOST_RATE = 1e30  # and cost; what is as far from 1 either way overflows once work is multiplied or divided by it


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Mesh:
    """The ranks that run one per-rank function together: ep_size groups, each of tp_size ranks.

    Group g holds experts g*E_local .. (g+1)*E_local-1. Each of its ranks has all of these where tp_size is 1; else rank
    g*tp_size + s has shard s of them: a tp_size-th of the columns of gate and up, and the rows of down that belong to these.

    Attributes:
        ep_size, tp_size: groups, and ranks of a group.
        node_size: how many consecutive ones are a node, with faster links inside than between nodes; all of them where None.

    Raises:
        ArgumentError: a size is not a positive int, or node_size no divisor of the number of ranks.

    Example:
        >>> Mesh(ep_size=4), Mesh(ep_size=16, node_size=8), Mesh(ep_size=4, tp_size=2).num_ranks
        (Mesh(ep_size=4), Mesh(ep_size=16, node_size=8), 8)
    """

    ep_size: int = 1
    tp_size: int = dataclasses.field(default=1, kw_only=True)
    node_size: int | None = dataclasses.field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        for name in ("ep_size", "tp_size"):
            check_argument(is_int(getattr(self, name)), "hpmoe.Mesh", name, repr(getattr(self, name)), "a positive int")
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.node_size is not None:
            is_part = is_int(self.node_size) and self.num_ranks % int(self.node_size) == 0
            what = "ep_size" if self.tp_size == 1 else "ep_size * tp_size"
            check_argument(is_part, "hpmoe.Mesh", "node_size", repr(self.node_size),
                           f"a divisor of {what}, {self.num_ranks}, or None")
            object.__setattr__(self, "node_size", int(self.node_size))

    @property
    def num_ranks(self) -> int:
        """Of all groups together."""
        return self.ep_size * self.tp_size

    def __repr__(self) -> str:
        shards = f", tp_size={self.tp_size}" if self.tp_size > 1 else ""
        nodes = "" if self.node_size is None else f", node_size={self.node_size}"
        return f"{type(self).__name__}(ep_size={self.ep_size}{shards}{nodes})"


def as_mesh(who: str, mesh: Mesh | None) -> Mesh:
    """The ranks of an argument that may be left out, which is one; ArgumentError where it is something else."""
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh or None")
    return mesh or Mesh()


@dataclasses.dataclass(frozen=True)
class Body:
    """How long tasks of one kind take, as measured: share of the machine's rate, and how much of it small tasks lose.

    A task of r rows, c columns and, of a matmul, k products for each sum takes as long as one of (r + rows)(c + cols)(k +
    inner) would at `share` of the machine's rate: of matmul_flops_per_us, or of vector_bytes_per_us for the bytes that all
    other tasks read and write. Rows of a task that sums over rows are those that it sums.

    Attributes:
        kind: the opcode, with the function of a MAP or ROW_REDUCE, and "T" where the second operand of a GMM is transposed.
        dtype: of what it reads.
        most_rows: that such a task has, a matmul with a way of its own for few of them; 0 for any number.

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


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Machine:
    """One rank's workers, its memory, its links and what they cost; every transform and the simulator ask it.

    Rates are of one worker or of the rank, as said; bytes and flops are for each microsecond. What a preset takes from where
    is said beside it.

    Attributes:
        name: printed in the provenance of a Taskflow.
        num_aic: matrix queues.
        num_aiv: vector and communication queues.
        unified: every worker takes both kinds of tasks, so there are num_aic queues and num_aiv is 0.
        tile_rows, tile_cols: default tile of a task.
        matmul_flops_per_us: of one AIC on half-precision tiles that fill it.
        matmul_efficiency: the share of that which a long product of a full tile reaches where data is at hand.
        matmul_float32_ratio: the rate in float32, as a share of that in half precision.
        matmul_int8_ratio: the rate of products of int8, or fp8, as a share of that in half precision.
        matmul_granule: rows of a matmul tile are worked on in multiples of this, and so are the products of its sums, of
            which half as many are in float32.
        accumulator_bytes: float32 sums of one matmul. A larger tile is cut into parts twice as wide as high; each reads
            its rows and its columns again.
        matmul_fill_us: before the first and after the last product of a tile.
        vector_bytes_per_us: of one AIV computing, bytes read and written.
        copy_bytes_per_us: of one AIV moving rows.
        l2_bytes: what the L2 of the rank, or of the computer that all ranks are threads of, holds.
        l2_bytes_per_us, worker_l2_bytes_per_us: of L2, for all workers together and at most for one.
        memory_bytes_per_us, worker_memory_bytes_per_us: the same of the memory behind it.
        node_size: ranks whose links are those of one node.
        link_bytes_per_us, worker_link_bytes_per_us: each direction of a rank's link inside a node, and at most for one
            worker.
        near_size: ranks near each other in a node; rows to those farther off in it take the same link, and longer.
        far_link_bytes_per_us: what it does with them.
        node_link_bytes_per_us: the same link between nodes.
        task_us: decoding a task and beginning its body.
        wait_us: looking at one wait of a task, when it is met.
        poll_us: from the arrival of a signal until a worker can see it.
        repoll_us: between two looks of a worker at an event that it waits for; 0 where it looks all the time.
        signal_us: of the worker, for each signal.
        remote_us, node_remote_us: until a signal arrives on another rank, of the node or of another one.
        scalar_us: of a vector worker, for one word that its scalar unit reads or writes near it; 0 where the prologue of a
            kernel, which places rows, takes next to nothing.
        dma_us: of a small transfer between memory and a worker, from asking to its end.
        launch_us: of a kernel.
        host_sync_us: of the host waiting for a device.
        collective_us: of a collective, besides its bytes.
        host_cores: where above 0, every rank is threads of one computer: the workers of all ranks share so many cores, and
            L2 and memory are those of all ranks together.
        bodies: measured kinds of tasks; the others take what the rates above say.
        constants: what is known of the numbers above, by their names; it does not count where machines are compared.

    Raises:
        ArgumentError: a count is not a positive int, a rate not a number from 1e-30 to 1e30, a cost not one from 0 to 1e30,
            or matmul_efficiency above 1.

    Example:
        >>> import hpmoe
        >>> slower = hpmoe.ascend_a3.replace(link_bytes_per_us=hpmoe.ascend_a3.link_bytes_per_us / 2)
        >>> slower.num_queues, slower.queue_name(0), slower.tile_rows
        (72, 'aic.0', 128)
    """

    name: str
    num_aic: int
    num_aiv: int
    unified: bool
    tile_rows: int
    tile_cols: int
    matmul_flops_per_us: float
    matmul_efficiency: float
    matmul_float32_ratio: float
    matmul_granule: int
    accumulator_bytes: float
    matmul_fill_us: float
    vector_bytes_per_us: float
    copy_bytes_per_us: float
    l2_bytes: float
    l2_bytes_per_us: float
    worker_l2_bytes_per_us: float
    memory_bytes_per_us: float
    worker_memory_bytes_per_us: float
    node_size: int
    link_bytes_per_us: float
    worker_link_bytes_per_us: float
    node_link_bytes_per_us: float
    task_us: float
    wait_us: float
    poll_us: float
    signal_us: float
    remote_us: float
    node_remote_us: float
    launch_us: float
    host_sync_us: float
    collective_us: float
    host_cores: float = 0.0
    matmul_int8_ratio: float = 1.0
    repoll_us: float = 0.0
    scalar_us: float = 0.0
    dma_us: float = 0.0
    near_size: int = MOST_QUEUES
    far_link_bytes_per_us: float = 1e9
    bodies: tuple[Body, ...] = ()
    constants: tuple[tuple[str, Constant], ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        least = {"num_aiv": 0 if self.unified is True else 1}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                low, high = least.get(field.name, 1), MOST_QUEUES if field.name.startswith("num_") else 2**30
                self._check(is_int(value, low, high), field.name, f"an int in {low}..{high}")
            elif field.type == "float":
                is_cost = field.name.endswith("_us") and not field.name.endswith("_per_us")
                is_size = is_cost or field.name in ("host_cores", "l2_bytes")
                least_value = 0.0 if is_size else 1 / MOST_RATE
                self._check(is_number(value) and least_value <= value <= MOST_RATE, field.name,
                            f"a number from {least_value:g} to {MOST_RATE:g}")
        self._check(isinstance(self.name, str) and self.name.isprintable(), "name", "a str of printable characters")
        self._check(isinstance(self.unified, bool), "unified", "True or False")
        self._check(self.matmul_efficiency <= 1, "matmul_efficiency", "a share, above 0 and at most 1")
        self._check(isinstance(self.bodies, tuple) and all(isinstance(b, Body) for b in self.bodies), "bodies",
                    "a tuple of hpmoe.machines.machine.Body")
        self._check(not self.unified or self.num_aiv == 0, "num_aiv", "0 where every worker takes both kinds of tasks")

    def _check(self, condition: bool, name: str, expected: str) -> None:
        check_argument(condition, "hpmoe.Machine", name, repr(getattr(self, name)), expected)

    def replace(self, **changes: object) -> Machine:
        """Another machine; what was known of the numbers that change is not known of it."""
        constants = tuple((name, constant) for name, constant in self.constants if name not in changes)
        return dataclasses.replace(self, **{"constants": constants, **changes})

    def of_bin(self, name: str) -> Machine:
        """This NPU as its dies are sold under a name: with that many cores, their clock and L2, all else as it is.

        Raises:
            ArgumentError: there is no such bin, or this is no NPU.

        Example:
            >>> import hpmoe
            >>> b3 = hpmoe.ascend_a2.of_bin("910B3")
            >>> b3.name, b3.num_aic, b3.num_aiv
            ('ascend_a2.910B3', 20, 40)
        """
        self._check(not self.unified, "unified", "False: bins are those of an NPU, of hpmoe.ascend_a2 or hpmoe.ascend_a3")
        check_argument(isinstance(name, str) and bin_name(name) in BINS, "hpmoe.Machine.of_bin", "name", repr(name),
                       f"one of {', '.join(BINS)}")
        sold = BINS[bin_name(name)]
        return self.replace(name=f"{self.name}.{bin_name(name)}", num_aic=sold.num_aic, num_aiv=2 * sold.num_aic,
                            matmul_flops_per_us=FLOPS_PER_CYCLE * sold.ghz * 1e3, l2_bytes=sold.l2_bytes)

    @property
    def num_queues(self) -> int:
        return self.num_aic + self.num_aiv

    def link_rate(self, ep_size: int) -> float:
        """Bytes for each microsecond of a rank's link inside a node, each way, among so many ranks that get the same of it.

        Example:
            >>> import hpmoe
            >>> machine = hpmoe.ascend_a3.replace(near_size=2, link_bytes_per_us=100.0, far_link_bytes_per_us=50.0)
            >>> machine.link_rate(2), machine.link_rate(3)
            (100.0, 66.66666666666667)
        """
        others = min(ep_size, self.node_size) - 1
        near = min(self.near_size - 1, others)
        if near == others:
            return self.link_bytes_per_us
        return others / (near / self.link_bytes_per_us + (others - near) / self.far_link_bytes_per_us)

    def matmul_rate(self, dtype: str) -> float:
        """Flops for each microsecond of one AIC on a full tile of a dtype; BYTES are int8 that are multiplied as such."""
        ratio = {"float32": self.matmul_float32_ratio, BYTES: self.matmul_int8_ratio}.get(dtype, 1.0)
        return self.matmul_flops_per_us * self.matmul_efficiency * ratio

    def body(self, kind: str, dtype: str, rows: int = 0) -> Body | None:
        """What was measured of tasks of a kind; of another dtype or function where not of this one. With `rows` what was
        measured only of tasks of few rows, these among them."""
        found = [b for b in self.bodies if b.kind.partition(" ")[0] == kind.partition(" ")[0]
                 and (0 < rows <= b.most_rows or rows == b.most_rows == 0)]
        return max(found, key=lambda b: (b.kind == kind, b.dtype == dtype), default=None)

    def queues_of(self, unit: str) -> range:
        """Queue numbers that take tasks of `unit`, "aic" or "aiv"."""
        if self.unified or unit == "aic":
            return range(self.num_aic)
        return range(self.num_aic, self.num_queues)

    def queue_name(self, queue: int) -> str:
        """How a queue is printed: "worker.0", "aic.3" or "aiv.17"."""
        if self.unified:
            return f"worker.{queue}"
        return f"aic.{queue}" if queue < self.num_aic else f"aiv.{queue - self.num_aic}"
