"""SizedCache: what was used last, up to a number of bytes."""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import numpy as np

V = TypeVar("V")

MOST_BYTES = 256 << 20  # of the plans of a function, and of its traces
OBJECT_BYTES = 100  # about what an object takes that is no array
MOST_NOTED = 4096  # keys of evicted values


class SizedCache(Generic[V]):
    """A cache of at most `most_bytes` that evicts what was used longest ago. The value put last always stays.

    It warns once when it makes room by what is needed again: a value is put under a key that was evicted before.
    """

    def __init__(self, what: str, most_bytes: int = MOST_BYTES) -> None:
        self.what, self.most_bytes, self.num_bytes = what, most_bytes, 0
        self._values: collections.OrderedDict[Hashable, tuple[V, int]] = collections.OrderedDict()
        self._evicted: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """Returns the value of a key, which is then the last used, or None."""
        if (kept := self._values.get(key)) is None:
            return None
        self._values.move_to_end(key)
        return kept[0]

    def put(self, key: Hashable, value: V) -> None:
        if key in self._evicted and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{self.what} take more than {self.most_bytes >> 20} MiB, so they are made again. Pad arguments "
                          "to fewer shapes, or keep plans in files: fuse_persistent(keep_plans=True).", stacklevel=3)
        self._remove(key)
        size = num_bytes(value)
        while self._values and self.num_bytes + size > self.most_bytes:
            oldest = next(iter(self._values))
            self._remove(oldest)
            self._evicted[oldest] = None
            if len(self._evicted) > MOST_NOTED:
                self._evicted.popitem(last=False)
        self._values[key] = value, size
        self.num_bytes += size

    def _remove(self, key: Hashable) -> None:
        self.num_bytes -= self._values.pop(key, (None, 0))[1]


def num_bytes(value: object) -> int:
    """Returns the bytes of all arrays that a value of hpmoe refers to, and OBJECT_BYTES for each other object.

    Example:
        >>> num_bytes((np.zeros(1000), [np.zeros(1000, np.float32)])) // 1000
        12
    """
    seen: set[int] = set()
    left, total = [value], 0
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        total += one.nbytes if isinstance(one, np.ndarray) else OBJECT_BYTES
        parts = _parts(type(one))
        if parts:
            left += parts(one)
    return total


@functools.lru_cache(maxsize=4096)
def _parts(kind: type) -> Callable[..., Iterable[object]] | None:
    """Returns a function from an object of a class to the objects that it refers to, or None if it is not looked into."""
    if issubclass(kind, Mapping):
        return kind.values
    if issubclass(kind, (tuple, list, set, frozenset)):
        return iter
    if kind.__module__.startswith("hpmoe") and kind.__dictoffset__:
        return lambda instance: vars(instance).values()
    return None
