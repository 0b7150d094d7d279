"""permute.py: rows permuted and brought back, beside a copy past the caches and the same in other frameworks."""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
import script
import styles
from absl import flags
from mindspore import Tensor, ops

import hpmoe
from hpmoe.commands import options
from hpmoe.kernels import token_rows
from hpmoe.kernels.native import load
from hpmoe.routing.workload import sampled_ids
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError
from hpmoe.support.loading import address
from hpmoe.support.trees import PyTree

SUMMARY = "times permute and its gradient beside a copy past the caches and other frameworks"
TOKENS, HIDDEN = (4096, 65_536), (1024, 2048, 4096, 7168)
TOP_K, EXPERTS, RANKS = 8, 256, 8
MOST_BYTES = 2**32
Call = Callable[[], PyTree]  # an array or a tensor of any framework
SORTED, SORTS = (2**16, 2**18, 2**20, 2**22, 2**24), 9
NOTES = """\
  python examples/benchmarks/permute.py --tokens=4096 --hidden=1024
Medians of turns, in which each side runs once. Forward: expert ids to permuted rows; the sort alone is a part of it.
Backward: from the gradients of rows to those of tokens, a sum for each. Of the copy: the bytes of the rows per
second, of those that a copy of them with non-temporal stores moves on all cores. MindSpore: sort, slice,
floor-divide, gather, op by op in blocking mode; of bfloat16 it gathers the bits. Requests: runs of rows that are
consecutive where they come from and where they go, on 8 ranks: as tokens come; sorted by rank; by rank, then expert.
--styles compares whole layers instead: one of permute and exchange, one of dispatch and combine."""


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "tokens", None, f"one of {TOKENS} where not given each; with --styles of a rank")
    options.define_integer(values, "hidden", None, f"one of {HIDDEN} where not given each")
    script.define_dtypes(values)
    options.define_integer(values, "repeats", 7, "turns of each side")
    options.define_switch(values, "styles", "instead: a layer of permute and exchange beside one of dispatch and combine")
    styles.define(values)


def run(o: flags.FlagValues) -> int:
    if o.styles:
        return styles.run(o)
    tokens, hidden = ((getattr(o, name),) if o[name].present else every for name, every in
                      (("tokens", TOKENS), ("hidden", HIDDEN)))
    report = {"machine": script.machine(), "repeats": o.repeats, "cases": []}
    for case in reports(tokens, hidden, script.DTYPES[o.dtype], o.repeats):
        report["cases"].append(case)
        if not o.json:
            print("\n".join(lines(case)), flush=True)
    report["sort"] = sort_times()
    return options.report(o, report, f"{sort_line(report['sort'])}\n{NOTES}")



class Case:
    """Tokens, their experts, and what each side computes of them.

    Attributes:
        sides: what is timed, by name.
    """

    def __init__(self, tokens: int, hidden: int, dtype: str):
        rng = np.random.default_rng(0)
        self.tokens, self.hidden, self.dtype = tokens, hidden, dtype
        self.ids = sampled_ids(1, tokens, TOP_K, EXPERTS, is_zipf=False, seed=rng)[0].astype(np.int32)
        self.x = rng.standard_normal((tokens, hidden), np.float32).astype(numpy_dtype(dtype))
        self.places = token_rows.sorted_places(self.ids)
        self.entries = token_rows.Entries(self.places, TOP_K, self.places.size, 0)
        self.rows = token_rows.spread(self.x, self.entries)
        self.sides: dict[str, Call] = {
            "copy": self._copy,
            "sort": lambda: token_rows.sorted_places(self.ids),
            "hpmoe forward": self._forward(),
            "hpmoe backward": lambda: token_rows.collect(self.rows, self.entries, None, dtype),
            "MindSpore forward": self._mindspore(),
            **self._torch(),
        }

    def _copy(self) -> np.ndarray:
        out = token_rows.MEMORY.empty(self.rows.shape, self.rows.dtype)  # where forward's result was
        load().hpmoe_copy_streamed(address(self.rows), self.rows.nbytes, address(out))
        return out

    def _forward(self) -> Call:
        x, ids = Tensor.from_numpy(self.x), Tensor(self.ids)
        return lambda: hpmoe.token_ops.permute(x, ids)[0]

    def _mindspore(self) -> Call:
        bits = self.x.view(np.float16) if self.dtype == "bfloat16" else self.x  # it has no gather of bfloat16
        x, ids, kept = Tensor.from_numpy(bits), Tensor(self.ids.astype(np.float32)), self.places.size

        def forward() -> Tensor:
            _, order = ops.sort(ids.reshape(-1))
            return ops.gather(x, ops.floor_divide(order[:kept], TOP_K), 0)
        return forward

    def _torch(self) -> dict[str, Call]:
        if importlib.util.find_spec("torch") is None or self.dtype == "bfloat16":
            return {}
        import torch  # pyright: ignore[reportMissingImports]  an extra
        x, ids = torch.from_numpy(self.x), torch.from_numpy(self.ids)
        grad = torch.from_numpy(self.rows)

        def tokens():
            return torch.sort(ids.reshape(-1), stable=True)[1] // TOP_K
        by_row = tokens()
        return {"torch forward": lambda: x.index_select(0, tokens()),
                "torch forward, output reused": lambda: torch.index_select(x, 0, tokens(), out=torch.from_numpy(
                    token_rows.MEMORY.empty(self.rows.shape, self.rows.dtype))),
                "torch backward": lambda: torch.zeros_like(x).index_add_(0, by_row, grad)}

    def _check(self) -> None:
        """Raises LaunchError where hpmoe and MindSpore permute differently; some of the rows tell.

        As in a training step both results of hpmoe are there at once, so that there is memory for both afterwards.
        """
        some, (permuted, _) = slice(None, None, 997), [self.sides[f"hpmoe {way}"]() for way in ("forward", "backward")]
        mine, theirs = (x.asnumpy()[some] for x in (permuted, self.sides["MindSpore forward"]()))
        if not np.array_equal(mine.view(np.uint8), theirs.view(np.uint8)):
            raise LaunchError("hpmoe and MindSpore permute rows differently")

    def measured(self, repeats: int) -> Fields:
        """Seconds of each side and what follows from them."""
        taken: dict[str, list[float]] = {name: [] for name in self.sides}
        self._check()
        for turn in range(repeats + 1):
            for name, side in self.sides.items():
                start = time.perf_counter()
                result = side()
                end = time.perf_counter()
                del result  # a result's memory is for the next one
                if turn:  # the first one is untimed
                    taken[name].append(end - start)
        seconds = {name: statistics.median(of_side) for name, of_side in taken.items()}
        return {"tokens": self.tokens, "hidden": self.hidden, "dtype": self.dtype, "bytes": self.rows.nbytes,
                "seconds": seconds, "requests": requests(self.ids, self.places),
                "forward_share": seconds["copy"] / seconds["hpmoe forward"],
                "backward_share": seconds["copy"] / seconds["hpmoe backward"],
                "mindspore_ratio": seconds["MindSpore forward"] / seconds["hpmoe forward"]}


def requests(ids: np.ndarray, places: np.ndarray) -> list[int]:
    """Runs of rows that lie one after the other at both ends: unsorted, sorted by rank, and by rank and expert.

    Example:
        >>> ids = np.array([[0, 1], [0, 1], [0, 1]], np.int32)
        >>> requests(ids, token_rows.sorted_places(ids))
        [6, 6, 2]
    """
    flat = ids.reshape(-1)
    orders = (np.arange(flat.size), np.argsort(flat // (EXPERTS // RANKS), kind="stable"), np.argsort(places))
    found = []
    for order in orders:
        goes_on = (np.diff(places[order]) == 1) & (flat[order][1:] == flat[order][:-1])
        found.append(int(flat.size - np.count_nonzero(goes_on)))
    return found


def sort_times(entries: tuple[int, ...] = SORTED, experts: int = 1024) -> Fields:
    """Returns the best seconds of a sort of each number of entries, and the slope of their logarithms; 1 is linear."""
    ids = [np.random.default_rng(0).integers(0, experts, count, np.int32) for count in entries]
    seconds = [float("inf")] * len(entries)
    for _ in range(SORTS):
        for i, mine in enumerate(ids):
            start = time.perf_counter()
            token_rows.sorted_places(mine)
            seconds[i] = min(seconds[i], time.perf_counter() - start)
    return {"entries": entries, "experts": experts, "seconds": seconds,
            "slope": float(np.polyfit(np.log(entries), np.log(seconds), 1)[0])}


def _free_bytes() -> int:
    """Memory that can be had without swapping, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return found[0] if found else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def reports(tokens: tuple[int, ...], hidden: tuple[int, ...], dtypes: tuple[str, ...],
            repeats: int) -> Iterator[Fields]:
    """A report of each case; one that has no room says so."""
    ms.runtime.launch_blocking()
    for count in tokens:
        for width in hidden:
            for dtype in dtypes:
                size = count * TOP_K * width * numpy_dtype(dtype).itemsize
                most = min(MOST_BYTES, _free_bytes() // 4)
                if size <= most:
                    yield Case(count, width, dtype).measured(repeats)
                else:
                    yield {"tokens": count, "hidden": width, "dtype": dtype, "bytes": size,
                           "skipped": f"its rows take {size / 1e9:.1f} GB, more than {most / 1e9:.1f}"}


def sort_line(sort: Fields) -> str:
    """The text of sort_times."""
    times = ", ".join(f"{n} in {1e3 * t:.1f}" for n, t in zip(sort["entries"], sort["seconds"], strict=True))
    return f"sort by {sort['experts']} experts, ms: {times}; log-log slope {sort['slope']:.2f}"


def lines(report: Fields) -> list[str]:
    """The text of a report."""
    head = f"{report['tokens']} tokens x {report['hidden']} {report['dtype']}, {report['bytes'] / 1e9:.2f} GB of rows"
    if "skipped" in report:
        return [f"{head}: skipped, {report['skipped']}"]
    table = [f"  {name:30}{1e3 * seconds:10.2f} ms" for name, seconds in report["seconds"].items()]
    if "torch forward" not in report["seconds"]:
        table.append("  torch: left out, not installed or bfloat16")
    return [head, *table, f"  of the copy: forward {report['forward_share']:.0%}, backward {report['backward_share']:.0%}; "
            f"MindSpore : hpmoe {report['mindspore_ratio']:.1f}x",
            "  requests: {}, by rank {}, by rank and expert {}".format(*report["requests"])]


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
