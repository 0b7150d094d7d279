"""The constants of a Machine in groups, one for each part of the hardware."""

from __future__ import annotations

import dataclasses

from hpmoe.support.dtypes import BYTES
from hpmoe.support.errors import check_argument, is_int, is_number

MOST_QUEUES = 1 << 16
MOST_RATE = 1e30  # and cost; what is as far from 1 either way overflows once work is multiplied or divided by it
MAY_BE_ZERO = ("l2.bytes", "host.cores")


def check_constant(name: str, kind: str, value: object) -> None:
    """Raises ArgumentError if the value of a constant, an "int" or a "float", is out of its range."""
    if kind == "int":
        low, high = int(name != "num_aiv"), MOST_QUEUES if name.startswith("num_") else 2**30
        check_argument(is_int(value, low, high), "hpmoe.Machine", name, repr(value), f"an int in {low}..{high}")
        return
    least = 0.0 if is_cost(name) or name in MAY_BE_ZERO else 1 / MOST_RATE
    is_right = is_number(value) and least <= value <= MOST_RATE
    check_argument(is_right, "hpmoe.Machine", name, repr(value), f"a number from {least:g} to {MOST_RATE:g}")


def is_cost(name: str) -> bool:
    """Returns whether a constant is a time in microseconds, so that a smaller value is better."""
    return name.endswith("_us") and not name.endswith("_per_us")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Constants that belong together; `machine.link` is a group and "link.bytes_per_us" the name of a constant in it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_constant(f"{type(self).__name__.lower()}.{field.name}", str(field.type), getattr(self, field.name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cube(Group):
    """The matrix unit of one AIC.

    Attributes:
        flops_per_us: peak rate in half precision.
        efficiency: share of the peak that a long product of a full tile reaches if its data is at hand, at most 1.
        float32_ratio, int8_ratio: peak rate of float32, and of int8 or fp8, as shares of the rate in half precision.
        granule: rows of a tile, and products of each of its sums, are processed in multiples of this number; in float32
            products in multiples of half of it.
        accumulator_bytes: capacity for the float32 sums of one product. A larger tile is cut into parts twice as wide as
            high; each part reads its rows and its columns again.
        fill_us: time before the first and after the last product of a tile.
    """

    flops_per_us: float
    efficiency: float
    float32_ratio: float
    int8_ratio: float = 1.0
    granule: int
    accumulator_bytes: float
    fill_us: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument(self.efficiency <= 1, "hpmoe.Machine", "cube.efficiency", repr(self.efficiency),
                       "a share, above 0 and at most 1")

    def rate(self, dtype: str) -> float:
        """Returns the flops per microsecond of one AIC on a full tile of a dtype; "bytes" are products of int8."""
        ratio = {"float32": self.float32_ratio, BYTES: self.int8_ratio}.get(dtype, 1.0)
        return self.flops_per_us * self.efficiency * ratio


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vector(Group):
    """The vector unit of one AIV.

    Attributes:
        bytes_per_us: bytes read and written per microsecond while it computes.
        copy_bytes_per_us: bytes read and written per microsecond while it moves rows.
    """

    bytes_per_us: float
    copy_bytes_per_us: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class L2(Group):
    """The last cache, shared by all workers of a rank, or of the computer that all ranks are threads of.

    Attributes:
        bytes: capacity.
        bytes_per_us: rate of all workers together.
        worker_bytes_per_us: highest rate of one worker.
    """

    bytes: float
    bytes_per_us: float
    worker_bytes_per_us: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(Group):
    """The memory behind L2.

    Attributes:
        bytes_per_us: sustained rate of all workers together, reads.
        worker_bytes_per_us: highest rate of one worker.
        write_cost: bytes read in the time that one byte is written in, at least 1.
    """

    bytes_per_us: float
    worker_bytes_per_us: float
    write_cost: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument(self.write_cost >= 1, "hpmoe.Machine", "memory.write_cost", repr(self.write_cost), "a number from 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link(Group):
    """A rank's link to other ranks. Each rate is of one direction; both directions are in use together.

    Attributes:
        bytes_per_us: rate to near ranks of its node.
        worker_bytes_per_us: highest rate of one worker.
        far_bytes_per_us: rate to far ranks of its node.
        node_bytes_per_us: rate to ranks of other nodes.
        near_size: number of ranks near each other.
        node_size: number of ranks in a node.
    """

    bytes_per_us: float
    worker_bytes_per_us: float
    far_bytes_per_us: float = 1e9
    node_bytes_per_us: float
    near_size: int = MOST_QUEUES
    node_size: int

    def rate(self, ep_size: int) -> float:
        """Returns the bytes per microsecond that one rank sends, and receives, in a balanced exchange of `ep_size` ranks.

        Ranks of other nodes are left out. A rank sends the same number of bytes to each rank of its node, near or far.

        Example:
            >>> import hpmoe
            >>> machine = hpmoe.machines.ascend_a3.replace({
            ...     "link.near_size": 2, "link.bytes_per_us": 100.0, "link.far_bytes_per_us": 50.0})
            >>> machine.link.rate(2), machine.link.rate(3)
            (100.0, 66.66666666666667)
        """
        others = min(ep_size, self.node_size) - 1
        near = min(self.near_size - 1, others)
        if near == others:
            return self.bytes_per_us
        return others / (near / self.bytes_per_us + (others - near) / self.far_bytes_per_us)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sync(Group):
    """Times of a worker for its tasks, waits and signals besides the bodies of tasks.

    Attributes:
        task_us: decoding a task and beginning its body.
        pass_us: passing by a task of a slot that has no rows, without a look at its waits; 0 if as long as task_us.
        wait_us: reading one event that a task waits for, once the event has its count.
        poll_us: from the arrival of a signal until a worker can see it.
        repoll_us: between two reads by a worker of an event that it waits for; 0 if it reads all the time.
        signal_us: sending one signal.
        remote_us, node_remote_us: until a signal arrives on another rank of the node, and on a rank of another node.
    """

    task_us: float
    pass_us: float = 0.0
    wait_us: float
    poll_us: float
    repoll_us: float = 0.0
    signal_us: float
    remote_us: float
    node_remote_us: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host(Group):
    """The host of a rank and what it starts.

    Attributes:
        launch_us: time of a kernel launch.
        prologue_us: time of a persistent kernel before its first task if rows are routed: entries are sorted, counts are
            exchanged, rows are placed and thresholds of events are set.
        expert_us: further time of that for each expert of a rank.
        sort_us: further time of the prologue for each route whose entries are not sorted by vector instructions: of
            experts with replicas, of tokens sent once, and if weights decide which entries are dropped.
        entry_us: further time for such a route, for each of its entries that a worker sorts and for each expert.
        sync_us: time of the host waiting for a device.
        collective_us: time of a collective besides its bytes.
        cores: above 0, all ranks are threads of one computer: their workers share this number of cores, and L2 and memory
            are those of all ranks together.
    """

    launch_us: float
    prologue_us: float = 0.0
    expert_us: float = 0.0
    sort_us: float = 0.0
    entry_us: float = 0.0
    sync_us: float
    collective_us: float
    cores: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operators(Group):
    """Kernels of the vendor's library, each of which runs one operation; see `examples/benchmarks/operator_formulas.py`.

    Attributes:
        spread: measured over predicted time of a kernel; its range holds what the other constants leave unexplained.
        matmul_us, quantized_matmul_us: time of a product of floats, and of int8 rows and weights, besides its work.
        vector_us: time of any other kernel besides its work.
        read_share: share of memory.bytes_per_us at which products of floats read; products of int8 read at all of it.
        overlap, row_overlap: how much of reading a product hides behind its multiplications, and of these if all rows are
            one tile: of the times a and b both together take (a**p + b**p)**(1/p).
        reuse_bytes: what products read twice at most if L2 is larger than that; more is read again for other tiles.
        reuse_bytes_per_us: rate at which all workers together read what is in L2.
        combine_share: share of the link's rates that kernels reach which combine rows.
        dequantize_us: time until 256 or more rows of int32 sums are the first floats; fewer take less, as their square root.
        dequantize_row_us: further time for each row.
        dequantize_bytes_per_us: rate of sums that are read and floats that are written, of all workers together.
    """

    spread: float = 1.0
    matmul_us: float = 0.0
    quantized_matmul_us: float = 0.0
    vector_us: float = 0.0
    read_share: float = 1.0
    overlap: float = 2.0
    row_overlap: float = 4.0
    reuse_bytes: float = 1e9
    reuse_bytes_per_us: float = 1e9
    combine_share: float = 1.0
    dequantize_us: float = 0.0
    dequantize_row_us: float = 0.0
    dequantize_bytes_per_us: float = 1e9
