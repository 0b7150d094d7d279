"""hpmoe.route eager, as a program and as a kernel, and what comes of it held to the oracle."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from helpers import stages
from mindspore import Tensor

import hpmoe

T, E = 13, 24
BIAS = np.linspace(-0.6, 0.6, E).astype(np.float32)[np.random.default_rng(9).permutation(E)]
SCORES = ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen")


@hpmoe.transform(requires="program")
def traced(program):
    """The program as it is, run by the references of its primitives."""
    return program


RUNS = {"eager": lambda f: f, "program": traced, "kernel": stages(rows=4, cols=5)["fused"]}
EVERYWHERE = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def in_turn(names, *values):
    """Parametrizes a test by a product of values, each row of it with one of RUNS in turn."""
    rows = itertools.product(*values)
    return pytest.mark.parametrize(f"{names}, run", [
        pytest.param(*row, RUNS[run], id=f"{'-'.join(map(str, row))}-{run}")
        for i, row in enumerate(rows) for run in [list(RUNS)[(i + i // len(RUNS)) % len(RUNS)]]])


def logits(seed=0, tokens=T, experts=E, scale=2.0):
    z = np.random.default_rng(seed).standard_normal((tokens, experts)).astype(np.float32) * np.float32(scale)
    z[1], z[2, ::2] = 0.25, z[2, 1::2]  # all equal, and in pairs
    return z


def route_by(run, z, k, **options):
    tensors = {name: v for name, v in options.items() if isinstance(v, Tensor)}
    fixed = {name: v for name, v in options.items() if name not in tensors}
    out = run(lambda z, tensors: hpmoe.route(z, k, **tensors, **fixed))(Tensor(z), tensors)
    return tuple(v.asnumpy() for v in out)


def assert_routes(got, want):
    """MindSpore's exp is exact to 7e-6 on a CPU."""
    assert got[0].dtype == np.int32 and got[1].dtype == np.float32
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-7)


def seeded(seed=7):
    return Tensor(seed, ms.int32)
