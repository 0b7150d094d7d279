"""The least squares behind hpmoe calibrate --profile: constants at a bound are left out of the steps of the others."""

import itertools
import math

import numpy as np
import profiles
import pytest

import hpmoe
from hpmoe.calibration import kernel_flows
from hpmoe.calibration.profile import calibrate_by_profile
from hpmoe.calibration.profile_fit import step_within

A3 = hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": 1.16e6, "memory.worker_bytes_per_us": 145e3,
                                       "memory.write_cost": 1.0})
SHAPES = ((1120, 864, 1088), (1120, 3584, 160), (2144, 2912, 1920), (608, 4640, 128))

CLEAR = ((4096, 4096, 2048), (2048, 3072, 2048), (8192, 64, 8192), (64, 8192, 4096))  # two of flops, two of memory


def calibrated(path, times_us):
    """The result for a table of products [rows, inner, cols], each with its time."""
    kernels = [profiles.kernel("MatMulV2", "AI_CORE", us, [(m, k), (n, k)], [(m, n)]) for (m, k, n), us in times_us.items()]
    return calibrate_by_profile(profiles.written(path / "a.csv", kernels), A3, None, str)


def of_shares(flops, memory):
    return A3.replace({"cube.flops_per_us": A3.cube.flops_per_us * flops,
                       "memory.bytes_per_us": A3.memory.bytes_per_us * memory})


def simulated_us(machine, shape):
    """A product on the machine, in the tiles of the machine that the fit begins at."""
    return hpmoe.simulate(kernel_flows.product_flow(A3, *shape), machine).span - machine.host.launch_us


def cost(found, flops, memory):
    """Squares of relative differences without a begin and an end, and of how far constants moved, as shares of A3's."""
    machine = of_shares(flops, memory)
    off = [math.log(kernel.simulate(machine) / kernel.us) / (0.02 + 0.2 / kernel.us) for kernel in found.kernels]
    return sum(x**2 for x in off) + (math.log(flops) ** 2 + math.log(memory) ** 2) / math.log(4) ** 2 + (2 / 4) ** 2


@pytest.mark.parametrize("flops, memory, shapes", [
    (0.7885, 0.8757, SHAPES), (0.6, 0.7, CLEAR), (0.8, 1.37, CLEAR)])
def test_true_constants_come_back_without_begin_and_end(flops, memory, shapes, tmp_path):
    true = of_shares(flops, memory)
    machine = calibrated(tmp_path, {shape: simulated_us(true, shape) for shape in shapes}).machine
    assert machine.cube.flops_per_us == pytest.approx(true.cube.flops_per_us, rel=0.03)
    assert machine.memory.bytes_per_us == pytest.approx(true.memory.bytes_per_us, rel=0.03)


@pytest.mark.parametrize("seed", [0, 73])
def test_no_point_of_a_grid_is_better_than_the_optimum(seed, tmp_path):
    """Times by a formula that the model cannot meet; the best begin and end take no time."""
    rng = np.random.default_rng(seed)
    flops, memory, begin_us = math.exp(rng.uniform(-0.3, 0.5)), math.exp(rng.uniform(-0.3, 0.7)), rng.choice([0, 0.5, 2])
    assert begin_us == 0
    times = {}
    for m, k, n in ((int(2 ** rng.uniform(5, 12.5)) // 32 * 32 for _ in range(3)) for _ in range(4)):
        of_flops = 2 * m * k * n / (24 * A3.cube.flops_per_us * A3.cube.efficiency * flops)
        times[m, k, n] = max(of_flops, 2 * (m * k + k * n + m * n) / (A3.memory.bytes_per_us * memory))
    found = calibrated(tmp_path, times)
    assert found.begin_end_us == 0
    shares = [found.machine[name] / A3[name] for name in ("cube.flops_per_us", "memory.bytes_per_us")]
    near = np.exp(np.linspace(-0.6, 0.6, 7))
    fitted = {f.name for f in found.fitted}
    assert "memory.bytes_per_us" in fitted
    of_flops = near if "cube.flops_per_us" in fitted else [1.0]
    assert cost(found, *shares) < 1.02 * min(cost(found, shares[0] * a, shares[1] * b) for a in of_flops for b in near)


def test_a_bounded_step_is_the_best_of_all_choices_of_bounds():
    rng = np.random.default_rng(0)
    for size in (*range(1, 6),) * 20:
        slopes = rng.standard_normal((size + 1, size)) * 10 ** rng.uniform(-2, 2, size)
        curvature, gradient = slopes.T @ slopes + np.eye(size) / 2, rng.standard_normal(size) * 10 ** rng.uniform(-1, 3)
        low, high = -rng.random(size) * (rng.random(size) < 0.7), rng.random(size) * (rng.random(size) < 0.7)
        least = math.inf
        for held in itertools.product((0, -1, 1), repeat=size):
            free, at = np.array(held) == 0, np.where(np.array(held) < 0, low, high)
            of_free = -(gradient + curvature[:, ~free] @ at[~free])[free]
            at[free] = np.linalg.solve(curvature[np.ix_(free, free)], of_free)
            if (at >= low).all() and (at <= high).all():
                least = min(least, at @ curvature @ at / 2 + gradient @ at)
        step = step_within(curvature, gradient, low, high)
        assert (step >= low).all() and (step <= high).all()
        assert step @ curvature @ step / 2 + gradient @ step == pytest.approx(least, rel=1e-9, abs=1e-9)
