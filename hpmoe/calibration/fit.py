"""Fits the time of tasks of one kind to measured ones: see machine.Body."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.machines.machine import Body

NEAR = 1.25  # a task that takes at most this factor longer than memory needs tells only what its body takes at most
LEAST_SPREAD = 1.5  # of a size, between the smallest and the largest task, for what small sizes lose to be told
ROUNDS, MOST_OFF = 40, 4.0


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Tasks of one kind, each an entry of equally long arrays."""

    work: np.ndarray  # flops of a matmul, bytes read and written of any other task
    rows: np.ndarray  # with cols and inner, sizes of the task
    cols: np.ndarray
    inner: np.ndarray
    us: np.ndarray  # time of the task
    memory_us: np.ndarray  # time that memory needs, all cores at work, for what caches did not hold of it

    @classmethod
    def joined(cls, parts: list[Samples]) -> Samples:
        return cls(*(np.concatenate([np.zeros(0), *(getattr(p, f.name) for p in parts)]) for f in dataclasses.fields(cls)))

    def select(self, which: np.ndarray) -> Samples:
        return Samples(*(getattr(self, f.name)[which] for f in dataclasses.fields(self)))


def fit(kind: str, dtype: str, samples: Samples, is_matmul: bool) -> tuple[Body, float]:
    """Returns a Body whose `share` is still the rate, and the median of |predicted / measured - 1|.

    A task takes as long as memory needs, or its body where that is longer: work / rate * (1 + rows0 / rows) *
    (1 + cols0 / cols) * (1 + inner0 / inner). Each factor in turn is fitted to what the others leave, none below zero. Only
    sizes that differ enough between tasks tell what small ones lose; a task far above its prediction, one that was
    interrupted, is left out.

    Example:
        >>> rows, cols = np.array([8.0, 64, 512, 8, 64, 512]), np.array([64.0] * 3 + [512.0] * 3)
        >>> tasks = Samples(rows * cols, rows, cols, np.ones(6), (rows + 16) * (cols + 32) / 100.0, np.zeros(6))
        >>> body, error = fit("SWIGLU", "float32", tasks, is_matmul=False)
        >>> round(body.share), round(body.rows), round(body.cols), round(error, 3)
        (100, 16, 32, 0.0)
    """
    samples = samples.select((samples.work > 0) & (samples.us > 0))
    predicted, _ = _fitted(samples, is_matmul)
    samples = samples.select(samples.us <= MOST_OFF * predicted)
    predicted, (rate, *lost) = _fitted(samples, is_matmul)
    return Body(kind, dtype, rate, *lost), float(np.median(np.abs(predicted / samples.us - 1)))


def _fitted(samples: Samples, is_matmul: bool) -> tuple[np.ndarray, list[float]]:
    """Fits a rate and the losses of small sizes to `samples`, see `fit`.

    Returns:
        The predicted microseconds of each task, and [rate, rows0, cols0], for a matmul also inner0: `rate` is work (flops or
        bytes) per microsecond, and a size n stretches time by 1 + n0 / n.
    """
    sizes = [samples.rows, samples.cols, *([samples.inner] if is_matmul else [])]
    tells = [i for i, s in enumerate(sizes) if s.max() >= LEAST_SPREAD * s.min()]
    stretch = np.ones((len(sizes), len(samples.us)))
    lost, rate = np.zeros(len(sizes)), float(samples.work.sum() / samples.us.sum())
    is_memory = samples.us <= NEAR * samples.memory_us
    for i in tells * ROUNDS:
        work = samples.work * np.prod(np.delete(stretch, i, axis=0), axis=0)
        body_us = work / rate * stretch[i]
        us = np.where(is_memory, np.minimum(body_us, samples.us), samples.us)
        rate, lost[i] = _line(work, 1 / sizes[i], us, body_us)
        stretch[i] = 1 + lost[i] / sizes[i]
    return np.maximum(samples.work / rate * np.prod(stretch, axis=0), samples.memory_us), [rate, *lost.tolist()]


def _line(work: np.ndarray, x: np.ndarray, us: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Returns (rate, b) of us = work / rate * (1 + b x), b >= 0, by least squares weighted by 1 / expected."""
    columns = np.stack([work, work * x], axis=1) / np.sqrt(expected)[:, None]
    a, b = np.linalg.lstsq(columns, us / np.sqrt(expected), rcond=None)[0]
    if b <= 0 or a <= 0:
        return float(work.sum() / us.sum()), 0.0
    return float(1 / a), float(b / a)
