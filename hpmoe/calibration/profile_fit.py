"""Constants of a machine fitted to the times of kernels, those that the kernels tell; and of the others why they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import hpmoe
from hpmoe.calibration.profile_kernels import Timed
from hpmoe.machines.hardware import is_cost

# What the time of a kernel hinges on first, and what is fitted besides where that leaves much of it unexplained; all else is
# inside of kernels, between them, or no time.
FIRST = ("cube.flops_per_us", "cube.efficiency", "cube.float32_ratio", "memory.bytes_per_us", "vector.bytes_per_us",
         "link.bytes_per_us", "link.far_bytes_per_us", "host.collective_us")
THEN = ("l2.worker_bytes_per_us", "cube.fill_us", "vector.copy_bytes_per_us", "link.worker_bytes_per_us", "l2.bytes_per_us",
        "memory.worker_bytes_per_us")
CONSTANTS = (*FIRST, *THEN)
OF_PRODUCTS = {name for name in CONSTANTS if name.startswith("cube.")}
OF_EXCHANGES = {name for name in CONSTANTS if name.startswith("link.")} | {"vector.copy_bytes_per_us", "host.collective_us"}
NOT_FELT = {"product": OF_EXCHANGES | {"vector.bytes_per_us"}, "elementwise": OF_PRODUCTS | OF_EXCHANGES,
            "exchange": OF_PRODUCTS}
MOST_SHARE = {"cube.efficiency", "cube.float32_ratio"}  # which are 1 at most
NOISE, NOISE_US = 0.02, 0.2  # how well a time is taken to be known
KNOWN = 0.1  # standard deviation of the logarithm of a constant that counts as fitted
HINGES = 0.1  # per cent that a time moves with a per cent of a constant, where it counts as told by it
SPREAD, STEP = math.log(4), 0.04  # of the logarithm of a constant before there are kernels; of a derivative
BEGIN_END_US = 2.0, 4.0  # what a profiler counts of a kernel besides its work, and how well that is known before
CLEARLY = 9.0  # by what the sum of squares, in standard deviations, falls
ROUNDS, HALVINGS = 8, 4
AT_ONCE = 2  # simulations


class Fitted(NamedTuple):
    """A constant that kernels tell: its value, between what it lies by them, and by what it was found."""

    name: str
    value: float
    low: float
    high: float
    by: str


class Fit(NamedTuple):
    """A machine with fitted constants; which those are, and why the others are not."""

    machine: hpmoe.Machine
    fitted: list[Fitted]
    unfitted: dict[str, str]
    begin_end_us: float  # what the profiler counts of each kernel besides its work
    simulated: list[float]  # microseconds of each kernel on that machine, that included


class _Point(NamedTuple):
    """Logarithms of constants as shares of the first machine's, and microseconds of a begin and an end."""

    logs: np.ndarray
    begin_end_us: float


def fit_machine(machine: hpmoe.Machine, kernels: Sequence[Timed], names: Sequence[str],
                progress: Callable[[str], None]) -> Fit:
    """The constants of a machine, of those named, at which it takes as long for kernels as they took.

    Least squares of the logarithms of times, by Gauss and Newton; before, each constant may be anything within a factor of
    about four. What the kernels leave more than a tenth unsure stays as it was, and the others are fitted again; so does a
    constant that only bounds a time, which a worse value would change and a better one would not. Constants
    of THEN are fitted one by one, where the kernels are met clearly better with them.
    """
    problem = _Problem(machine, kernels)
    left, unfitted = [name for name in names if name in FIRST], {}
    point = _Point(np.zeros(len(left)), BEGIN_END_US[0])
    while True:
        progress(f"fitting {len(left)} constants to {len(kernels)} kernels")
        point, slopes = problem.solved(left, point)
        unsure = problem.deviations(slopes)[:-1]
        if not left or unsure.max() <= KNOWN:
            break
        out = problem.alone(slopes)[:-1] > KNOWN
        out = out if out.any() else np.arange(len(left)) == np.argmax(unsure)
        unfitted |= {left[i]: problem.reason(left, slopes, int(i)) for i in np.flatnonzero(out)}
        left, point = [n for n, o in zip(left, out, strict=True) if not o], point._replace(logs=point.logs[~out])
    for name in (name for name in names if name in THEN):
        progress(f"fitting {name}")
        more, there, with_it = [*left, name], *problem.solved([*left, name], point._replace(logs=np.append(point.logs, 0.0)))
        gain = problem.cost(left, point) - problem.cost(more, there)
        unsure = problem.deviations(with_it)[:-1]
        if gain > CLEARLY and unsure.max() <= KNOWN:
            left, point, slopes = more, there, with_it
        else:
            unfitted[name] = problem.reason(more, with_it, len(left)) if unsure[-1] > KNOWN else (
                "the kernels are met as well without it")
    unsure = problem.deviations(slopes)[:-1]
    simulated, found = problem.simulated(left, point), problem.machine(left, point.logs)
    scatter = max(1.0, math.sqrt(float(np.mean(problem.residuals(simulated) ** 2))))
    fitted = []
    for name, deviation, slope in zip(left, unsure, slopes.T, strict=False):
        value, wide = found[name], math.exp(2 * scatter * float(deviation))
        by = f"{int(np.sum(np.abs(slope) * problem.noise > HINGES))} kernels"
        high = min(value * wide, 1.0) if name in MOST_SHARE else value * wide
        fitted.append(Fitted(name, value, value / wide, high, by))
    return Fit(found, fitted, {name: unfitted[name] for name in names if name in unfitted}, point.begin_end_us, simulated)


class _Problem:
    """Kernels, how well their times are known, and the machine that the fit begins at."""

    def __init__(self, machine: hpmoe.Machine, kernels: Sequence[Timed]):
        self.start, self.kernels = machine, kernels
        self.us = np.array([kernel.us for kernel in kernels])
        self.noise = NOISE + NOISE_US / self.us

    def machine(self, names: Sequence[str], logs: np.ndarray) -> hpmoe.Machine:
        values = {name: self.start[name] * math.exp(log) for name, log in zip(names, logs, strict=True)}
        return self.start.replace({n: min(value, 1.0) if n in MOST_SHARE else value for n, value in values.items()})

    def simulated(self, names: Sequence[str], point: _Point, which: np.ndarray | None = None) -> list[float]:
        """Microseconds of all kernels, or of some."""
        machine = self.machine(names, point.logs)
        kernels = [k for i, k in enumerate(self.kernels) if which is None or which[i]]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [us + point.begin_end_us for us in pool.map(lambda kernel: kernel.simulate(machine), kernels)]

    def residuals(self, simulated: Sequence[float]) -> np.ndarray:
        return np.log(np.array(simulated) / self.us) / self.noise

    def solved(self, names: Sequence[str], point: _Point) -> tuple[_Point, np.ndarray]:
        """The best point from one on, and by how much each kernel's residual moves there with each constant's logarithm,
        either way, and with what a begin and an end take."""
        simulated = self.simulated(names, point)
        for _ in range(ROUNDS):
            slopes = self._slopes(names, point, simulated)
            step = step_within(self._curvature(slopes), slopes.T @ self.residuals(simulated) + self._pull(point),
                               *self._bounds(names, point))
            for halving in range(HALVINGS):
                nearer = _Point(point.logs + step[:-1] / 2**halving, point.begin_end_us + float(step[-1]) / 2**halving)
                then = self.simulated(names, nearer)
                if self._cost(nearer, then) < self._cost(point, simulated):
                    break
            else:
                break
            gain = self._cost(point, simulated) - self._cost(nearer, then)
            point, simulated = nearer, then
            if gain < 0.01 * max(1.0, self._cost(point, simulated)):
                break
        worse, better = (self._slopes(names, point, simulated, way) for way in (-1, 1))
        is_at_bound = self._bounds(names, point)[1] < STEP
        return point, np.where((np.abs(worse) < np.abs(better)) | is_at_bound, worse, better)

    def deviations(self, slopes: np.ndarray) -> np.ndarray:
        """Standard deviations of the logarithms, and of a begin and an end."""
        return np.sqrt(np.diag(np.linalg.inv(self._curvature(slopes))))

    def alone(self, slopes: np.ndarray) -> np.ndarray:
        """Returns the uncertainty of each constant if all others were known."""
        return 1 / np.sqrt(np.diag(self._curvature(slopes)))

    def reason(self, names: Sequence[str], slopes: np.ndarray, which: int) -> str:
        """Why a constant is not told: nothing hinges on it, or on another one just so."""
        if self.alone(slopes)[which] > KNOWN:
            most = float(np.abs(slopes[:, which] * self.noise).max(initial=0.0)) * 10
            return f"no kernel hinges on it: 10 % of it move none by more than {most:.1f} %"
        other = [*names, "what a kernel takes to begin and end"][self._related(slopes, which)]
        return f"these kernels cannot tell it from {other}"

    def _related(self, slopes: np.ndarray, which: int) -> int:
        inverse = np.linalg.inv(self._curvature(slopes))
        related = np.abs(inverse[which] / np.sqrt(np.diag(inverse)))
        related[which] = 0.0
        return int(np.argmax(related))

    def _bounds(self, names: Sequence[str], point: _Point) -> tuple[np.ndarray, np.ndarray]:
        """The least and the most that a step may change each logarithm, and what a begin and an end take."""
        most = np.array([-math.log(self.start[name]) if name in MOST_SHARE else math.inf for name in names])
        ones = np.ones(len(names))
        return np.append(-ones, -point.begin_end_us), np.append(np.minimum(ones, most - point.logs), math.inf)

    def _slopes(self, names: Sequence[str], point: _Point, simulated: Sequence[float], way: int = -1) -> np.ndarray:
        """Towards worse values, by which what nearly holds a kernel up is felt too; or towards better ones, by 1."""
        columns, now = [], np.array(simulated)
        for i, name in enumerate(names):
            step = -way * STEP if is_cost(name) else way * STEP
            logs = point.logs.copy()
            logs[i] += step
            which = np.array([name not in NOT_FELT[kernel.family] for kernel in self.kernels])
            moved = now.copy()
            moved[which] = self.simulated(names, point._replace(logs=logs), which)
            columns.append(np.log(moved / now) / self.noise / step)
        return np.stack([*columns, 1 / now / self.noise], axis=1)

    def _curvature(self, slopes: np.ndarray) -> np.ndarray:
        return slopes.T @ slopes + np.diag([*[SPREAD**-2] * (slopes.shape[1] - 1), BEGIN_END_US[1] ** -2])

    def _pull(self, point: _Point) -> np.ndarray:
        return np.array([*(point.logs / SPREAD**2), (point.begin_end_us - BEGIN_END_US[0]) / BEGIN_END_US[1] ** 2])

    def cost(self, names: Sequence[str], point: _Point) -> float:
        """Sum of squares, in standard deviations, of residuals and of how far constants are moved."""
        return self._cost(point, self.simulated(names, point))

    def _cost(self, point: _Point, simulated: Sequence[float]) -> float:
        off = (point.begin_end_us - BEGIN_END_US[0]) / BEGIN_END_US[1]
        return float(np.sum(self.residuals(simulated) ** 2) + np.sum(point.logs**2) / SPREAD**2 + off**2)


def step_within(curvature: np.ndarray, gradient: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the s in low..high that minimizes s @ curvature @ s / 2 + gradient @ s, where low <= 0 <= high.

    An active set: a column is dropped while its entry is at a bound, so the other entries do not offset it, and is added
    again if the gradient there points inside.

    Example:
        >>> step_within(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([-4.0, -1.0]), np.zeros(2), np.ones(2))
        array([1., 0.])
    """
    step, free = np.zeros(len(gradient)), np.ones(len(gradient), bool)
    while True:
        held = gradient + curvature[:, ~free] @ step[~free]
        move = np.zeros(len(step))
        move[free] = np.linalg.solve(curvature[np.ix_(free, free)], -held[free]) - step[free]
        bound = np.where(move > 0, high, low)
        capacity = np.divide(bound - step, move, out=np.full(len(step), math.inf), where=move != 0)
        first = int(np.argmin(capacity))
        if capacity[first] < 1:
            step, free[first] = step + capacity[first] * move, False
            step[first] = bound[first]
            continue
        step += move
        inward = (curvature @ step + gradient) * np.where(step >= high, 1, -1) * (~free & (low < high))
        if inward.max(initial=0.0) <= 1e-9 * np.abs(gradient).max(initial=0.0):
            return step
        free[int(np.argmax(inward))] = True
