"""Hops of a call: few functions stand between a user's call and the native launch, and rows are counted once."""

import sys

import mindspore as ms
import pytest
from helpers import Layer, fused, tensors

import hpmoe
from hpmoe.kernels.native import load
from hpmoe.routing.kinds import direct

ARGS = tensors(a[0] for a in Layer(ep=1, T=8, H=8, I=8, E=4, K=2).arguments())
CALLED = "hpmoe.runtime.staged_function.__call__"


def of_call(names):
    """The functions from the staged function's call on; all of them if MindSpore calls the backward pass."""
    return names[names.index(CALLED):] if CALLED in names else names


def stack():
    """The functions of hpmoe that are running, outermost first."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        names.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")
        frame = frame.f_back
    return of_call([name for name in reversed(names) if name.startswith("hpmoe.")])


@pytest.fixture
def stacks(monkeypatch):
    """The stack at each native launch, in order."""
    library, found = load(), []
    launch = library.hpmoe_launch

    def noted(*args):
        found.append(stack())
        return launch(*args)
    monkeypatch.setattr(library, "hpmoe_launch", noted)
    return found


def test_a_call_passes_few_functions(stacks):
    fused()(hpmoe.moe_ffn)(*ARGS)
    (forward,) = stacks
    assert forward[0] == CALLED and len(forward) <= 8, forward


def test_a_call_under_a_gradient_passes_few_functions(stacks):
    layer = fused()(hpmoe.moe_ffn)
    ms.grad(lambda *args: layer(*args).sum(), (0, 2, 3, 4))(*ARGS)
    forward, backward = stacks
    assert forward[0] == CALLED and len(forward) <= 9, forward
    assert len(backward) <= 7, backward


def test_received_rows_are_counted_once_a_call(monkeypatch, stacks):
    """Capacity makes a single rank count, too: kept_counts is what reads all ids."""
    layer, kept_counts, counted = fused()(lambda *args: hpmoe.moe_ffn(*args, capacity_factor=8.0)), direct.kept_counts, []

    def noted(*args):
        counted.append(args)
        return kept_counts(*args)
    monkeypatch.setattr(direct, "kept_counts", noted)
    layer(*ARGS)
    ms.grad(lambda *args: layer(*args).sum(), (0, 2, 3, 4))(*ARGS)
    assert (len(counted), len(stacks)) == (2, 3)
