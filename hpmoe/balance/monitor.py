"""LoadMonitor: tokens of each expert, by layer and step, and what they say of the balance."""

from __future__ import annotations

import collections
from typing import NamedTuple, TypeAlias

import numpy as np
from mindspore import Tensor
from numpy.typing import ArrayLike

from hpmoe.support.errors import MOST, check_argument, has_bools, is_int
from hpmoe.support.keywords import suggests_keywords

WHO = "hpmoe.balance.LoadMonitor"

Counts: TypeAlias = Tensor | ArrayLike  # of all experts, once or for each rank


def summed_counts(who: str, counts: Counts, num_experts: int | None = None) -> np.ndarray:
    """Returns the tokens of each expert over all ranks, [E] float64, from counts [..., E], a Tensor or a NumPy array."""
    try:
        array = np.asarray(counts.asnumpy() if isinstance(counts, Tensor) else counts)
        array = array.astype(np.float64) if array.dtype.kind in "iuf" and not has_bools(counts) else np.zeros(0)
    except (TypeError, ValueError):
        array = np.zeros(0)
    is_one_each = array.ndim >= 1 and array.size > 0 and num_experts in (None, array.shape[-1])
    check_argument(is_one_each, who, "counts", f"of shape {array.shape}" if array.size else repr(counts),
                   f"counts of {num_experts or 'all'} experts, [..., {num_experts or 'num_experts'}]")
    bad = array[~((array >= 0) & (array <= MOST))]
    check_argument(not bad.size, who, "a number of counts", bad[0] if bad.size else "", "finite and not negative")
    return array.reshape(-1, array.shape[-1]).sum(0)


class LoadRow(NamedTuple):
    """Statistics of a layer over some steps; loads are in means of all experts, so 1.0 is balance.

    Attributes:
        layer: name of the layer.
        steps: number of steps.
        tokens: mean number of entries (token, choice) of a step.
        max_over_mean: load of the most loaded expert.
        p50, p90, p99: percentiles of the loads of experts, interpolated linearly.
        hottest: the most loaded expert, the first of equal ones.
        unused: number of experts that no token chose.
    """

    layer: str
    steps: int
    tokens: float
    max_over_mean: float
    p50: float
    p90: float
    p99: float
    hottest: int
    unused: int


@suggests_keywords
class LoadMonitor:
    """Tokens of each expert, by layer and step; printed, it is a table with a row for each layer.

    Args:
        keep: number of last steps that are kept for each layer.

    Raises:
        ArgumentError: keep is not a positive int; or, in a method, the layer was never recorded or counts are no counts.

    Example:
        >>> monitor = LoadMonitor()
        >>> monitor.record("layer 0", [6, 1, 1, 0])
        >>> monitor.record("layer 0", [[1, 1, 1, 0], [3, 1, 1, 0]])
        >>> print(monitor)
        layer    steps  tokens  max/mean   p50   p90   p99  hottest  unused
        layer 0      2       8      2.50  0.75  1.98  2.45        0       1
        >>> monitor.counts("layer 0").tolist()
        [[6, 1, 1, 0], [4, 2, 2, 0]]
    """

    def __init__(self, *, keep: int = 1000) -> None:
        check_argument(is_int(keep), WHO, "keep", repr(keep), "a positive int")
        self._keep = keep
        self._counts: dict[str, collections.deque[np.ndarray]] = {}

    def record(self, layer: str, counts: Counts) -> None:
        """Adds the counts of a layer in one step.

        Args:
            layer: name of the layer.
            counts: [..., E], tokens of each expert, as `hpmoe.router.tokens_per_expert` gives them; a Tensor or an array.
        """
        steps = self._counts.setdefault(layer, collections.deque(maxlen=self._keep))
        steps.append(summed_counts(f"{WHO}.record", counts, len(steps[0]) if steps else None).astype(np.int64))

    @property
    def layers(self) -> tuple[str, ...]:
        """Returns the names of the layers, in the order in which they were first recorded."""
        return tuple(self._counts)

    def counts(self, layer: str, last: int | None = None) -> np.ndarray:
        """Returns the tokens of each expert over all ranks, int64 [steps, E], of all kept steps or of the `last` ones."""
        check_argument(layer in self._counts, f"{WHO}.counts", "layer", repr(layer), f"one of {list(self._counts)}")
        check_argument(last is None or is_int(last), f"{WHO}.counts", "last", repr(last), "a positive int or None")
        return np.stack(self._counts[layer])[-last if last else None:]

    def row(self, layer: str, last: int | None = None) -> LoadRow:
        """Returns the statistics of a layer over all kept steps, or the last ones."""
        counts = self.counts(layer, last)
        loads = counts.mean(0)
        shares = loads / max(loads.mean(), 1e-300)
        p50, p90, p99 = map(float, np.percentile(shares, (50, 90, 99)))
        return LoadRow(layer, len(counts), float(loads.sum()), float(shares.max()), p50, p90, p99, int(shares.argmax()),
                       int((loads == 0).sum()))

    def __str__(self) -> str:
        rows = [self.row(layer) for layer in self._counts]
        width = max([len("layer"), *(len(r.layer) for r in rows)])
        lines = [f"{'layer':<{width}}  steps  tokens  max/mean   p50   p90   p99  hottest  unused"]
        lines += [f"{r.layer:<{width}}  {r.steps:>5}  {r.tokens:>6.0f}  {r.max_over_mean:>8.2f}  {r.p50:.2f}  {r.p90:.2f}  "
                  f"{r.p99:.2f}  {r.hottest:>7}  {r.unused:>6}" for r in rows]
        return "\n".join(lines)
