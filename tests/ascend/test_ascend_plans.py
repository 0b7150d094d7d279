"""Several plans in one image, of which a launch on the emulator takes one by the rows that the fullest rank receives."""

import numpy as np
import pytest
from chosen_plans import EXPECTED, LAYER, ChosenRun, ids_of, plan_for
from helpers import Layer

import hpmoe
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.plan_images import image_of
from hpmoe.kernels.protocol import Code, Opcode
from hpmoe.support.errors import LaunchError


def fullest(layer, ids):
    real = np.concatenate([mine[:n] for mine, n in zip(ids, layer.num_tokens or [layer.T] * layer.ep, strict=True)])
    return np.bincount(real.reshape(-1) // (layer.E // layer.ep)).max()


def assert_like_single_plan(expected=EXPECTED, **options):
    """Asserts that a kernel with several plans returns the same bits as a kernel with a single plan."""
    chosen, single = ChosenRun(expected=expected, **options), ChosenRun(expected=expected[:1], **options)
    for got, want in zip(chosen()[:-1], single()[:-1], strict=True):
        np.testing.assert_array_equal(got, want)
    assert {plan for taken in single.taken for plan in taken} == {0}
    return chosen


def test_consecutive_launches_take_plans_of_their_own():
    """Forward and backward choose by themselves; what lives from one to the other lies the same in all plans."""
    run = assert_like_single_plan()
    assert run.taken == [(plan_for(fullest(LAYER, ids_of(LAYER, routing))),) * 2 for routing in run.routings]
    assert {plan for plan, _ in run.taken} == {0, 1, 2}
    run.assert_close_to_float64()


@pytest.mark.slow
@pytest.mark.parametrize("tile_rows", [(16, 4, 8), (4, 8, 16)])
def test_plans_may_have_other_tiles(tile_rows):
    ChosenRun(tile_rows=tile_rows, blocks=3).assert_close_to_float64()


@pytest.mark.slow
def test_a_rank_may_be_empty():
    layer = Layer(ep=4, T=12, H=32, I=16, E=8, K=2, num_tokens=(12, 0, 7, 12))
    run = assert_like_single_plan(layer=layer)
    assert run.taken == [(plan_for(fullest(layer, ids_of(layer, routing))),) * 2 for routing in run.routings]


def filled_up(x, ids, weights, up, down):
    """moe_ffn of experts whose rows are multiples of 4."""
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=2, expert_alignment=4)
    rows = hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route)), down, route)
    return hpmoe.combine(rows, route, weights)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"f": lambda *args: hpmoe.moe_ffn(*args, capacity_factor=2.0, drop_policy="position"), "expected": (16, 32, 48)},
    {"f": lambda *args: hpmoe.moe_ffn(*args, capacity_factor=2.0, drop_policy="probs"), "expected": (16, 32, 48)},
    {"rewrite": lambda program: hpmoe.quantize_rows.apply_to(program, combine=True)},
    {"f": filled_up}],
    ids=["drops last", "drops lightest", "quantised", "aligned"])
def test_with_drops_quantised_and_aligned_rows(options):
    """With drops, the kept rows count."""
    taken = assert_like_single_plan(**options).taken
    assert len(set(taken)) > 1 and all(forward == backward for forward, backward in taken)


@pytest.mark.slow
def test_of_limited_rows():
    run = assert_like_single_plan(limit=2.5, expected=(24, 40, 60), routings=("balanced", "hot", "half"))
    assert len(set(run.taken)) > 1


def test_several_routes_have_one_plan():
    run = ChosenRun(rewrite=hpmoe.send_rows(scheme="deduplicated").apply_to)
    assert all(len(kernel.flows) == 1 for kernel in run.kernels)


def test_an_error_names_its_plan_and_the_next_launch_works():
    run = ChosenRun()
    forward = run.kernels[0]
    image = forward.image.copy()
    _, sections = unpack_image(image_of(image, 2))
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    lost = np.flatnonzero((opcodes == Opcode.GMM) & (sections["templates"]["num_signals"] > 0))
    sections["templates"]["num_signals"][lost] = 0
    run.kernels[0] = forward.replace(image=image)
    run.of("balanced")
    with pytest.raises(LaunchError, match=r"the launch took plan 2 of 3, expected rows 80\n") as error:
        run.of("one rank")
    assert error.value.status["code"] == Code.TIMEOUT and error.value.status["plan"] == 2
    run.of("balanced")
