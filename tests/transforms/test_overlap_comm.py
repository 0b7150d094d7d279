"""Puts that are for several ranks each, as overlap_comm makes them where there are very many slots and ranks."""

import json
import math
from types import SimpleNamespace

import numpy as np
import planning
import pytest
from command_line import run_script
from helpers import (
    SMALL_NPU,
    Layer,
    assert_close,
    assert_stays_moe_ffn,
    avals_of,
    fused,
    numpy_moe_ffn,
    run_spmd,
    stages,
)
from simulated_layers import layer

import hpmoe
from hpmoe import VerifyError
from hpmoe.commands import layer as commands
from hpmoe.costs import put_sizes
from hpmoe.routing.workload import balanced_ids, sampled_ids
from hpmoe.tiling.rebuild import rebuild

FIVE = Layer(ep=5, T=4, E=10, K=2, num_tokens=(4, 0, 3, 4, 1))
MACHINES = {"cpu": hpmoe.cpu(3), "npu": SMALL_NPU}


def lowered(layer, stage="queues", direction="forward", **options):
    return stages(**options)[stage](hpmoe.moe_ffn).lower(*avals_of(layer.arguments()), mesh=hpmoe.Mesh(layer.ep),
                                                         direction=direction)


@pytest.mark.parametrize("stage, num_peers, machine, order", [
    ("overlap", 2, "cpu", "ratr"), ("queues", 3, "npu", "sequential"), ("fused", 1, "cpu", "sequential"),
    ("fused", 2, "npu", "ratr"),
    ("fused", 3, "cpu", lambda rank, ep: [(rank * 2 + 1 - i) % ep for i in range(ep)])])
def test_results_are_those_of_puts_for_one(stage, num_peers, machine, order):
    args, cotangent = FIVE.arguments(), FIVE.cotangent()
    options = {"machine": MACHINES[machine], "order": order}
    got, alone = (run_spmd(stages(**options, **more)[stage](hpmoe.moe_ffn), FIVE.ep, args, [cotangent], FIVE.num_tokens)
                  for more in ({"num_peers": num_peers}, {}))
    want, want_grads = numpy_moe_ffn(args, cotangent, FIVE.num_tokens)
    assert_close([*got[0], *got[1]], [want, *want_grads])
    for a, b in zip((*got[0], *got[1]), (*alone[0], *alone[1]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("options", [{"put_cols": 2}, {"policy": "round_robin"}, {"policy": "stage_order", "rows": 1}],
                         ids=str)
def test_extremes(options):
    assert_stays_moe_ffn(fused(num_peers=2, **options), Layer(ep=4, T=3, E=8, K=2))


@pytest.mark.parametrize("ep, tokens, num_peers", [
    (64, 4096, [4, 8]),  # rows of a slot are of one rank or two
    (64, 128, [64, 64]),  # and of half of the ranks
    (8, 512, [8, 8])])
def test_groups_of_peers_give_way_before_parts_of_rows(ep, tokens, num_peers):
    sizes = SimpleNamespace(ep=ep, tokens=tokens, experts=256, top_k=8, hidden=7168, intermediate=2048, dtype="bfloat16")
    whole = commands.Layer(sizes, "forward", hpmoe.machines.ascend_a3, balanced_ids(ep, tokens, 8, 256), tuned=True)
    puts = [op for op in hpmoe.overlap_comm.apply_to(whole.tiles, put_cols="auto").ops if op.num_peers]
    assert [op.num_peers for op in puts] == num_peers
    assert all(math.prod(op.grid) <= put_sizes.MOST_PUTS and bool(op.tile_cols) == (tokens > 128) for op in puts)


@pytest.mark.parametrize("ep, tokens", [(64, 16384), (128, 8192)])
def test_images_do_not_grow_with_slots_times_ranks(ep, tokens, capsys):
    sizes = {"ep": ep, "tokens": tokens, "experts": 256, "top_k": 8, "hidden": 7168, "intermediate": 2048, "runs": 1}
    status, out, _ = run_script(capsys, planning, "--dtype=bfloat16", "--json", *(f"--{k}={n}" for k, n in sizes.items()))
    assert status == 0 and json.loads(out)["backward"]["image_bytes"] < 1_000_000


@pytest.mark.parametrize("options, num_peers", [({}, 4), ({"signal": "peer"}, 2), ({"signal": "expert"}, 2)])
def test_operations_that_omit_or_merge_ranks_are_refused(options, num_peers):
    flow = lowered(Layer(ep=3, T=2, E=3, K=1), "overlap", **options)
    with pytest.raises(VerifyError, match=f"has tasks for {num_peers} peers, not"):
        hpmoe.verify(rebuild(flow, tuple(op.replace(num_peers=num_peers if op.num_peers else 0) for op in flow.ops)))


def test_simulation_keeps_bytes_and_its_critical_path_is_whole():
    layer, machine = Layer(ep=4, T=6, H=8, E=8, K=2), SMALL_NPU
    ids = list(layer.arguments()[1])
    lines = [hpmoe.simulate(lowered(layer, machine=machine, num_peers=n), routing=ids) for n in (None, 2)]
    sent = [line.simulated.traffic[:, 2:, 0] for line in lines]
    np.testing.assert_allclose(*sent)
    for line in lines:
        assert sum(line.critical_path().shares().values()) == pytest.approx(line.span)


def test_puts_are_cut_where_a_worker_would_be_long_at_them():
    wide = [o.tile_cols for o in hpmoe.overlap_comm.apply_to(layer(tokens=512).tiles, put_cols="auto").ops if o.num_peers]
    many = [o.tile_cols for o in hpmoe.overlap_comm.apply_to(layer(ep=16, tokens=16384).tiles, put_cols="auto").ops
            if o.num_peers]
    fast = layer(tokens=512).tiles.replace(machine=hpmoe.machines.ascend_a3.replace({"link.worker_bytes_per_us": 1e9}))
    assert 0 < max(wide) < max(many) < 7168
    assert {o.tile_cols for o in hpmoe.overlap_comm.apply_to(fast, put_cols="auto").ops if o.num_peers} == {0}


def test_workers_with_few_puts_have_finer_ones(monkeypatch):
    """With sampled experts some workers have rows of several; a slot waits for all of them."""
    sizes = SimpleNamespace(ep=16, tokens=32, experts=32, top_k=8, hidden=2048, intermediate=768, dtype="bfloat16")
    ids, found = sampled_ids(16, 32, 8, 32), []
    for few in (put_sizes.FEW_PUTS, 0):
        monkeypatch.setattr(put_sizes, "FEW_PUTS", few)
        flow = commands.Layer(sizes, "forward", hpmoe.machines.ascend_a3, ids, tuned=True).fused_flow()
        found.append((hpmoe.simulate(flow, routing=ids).span, max(op.tile_cols or 2048 for op in flow.ops if op.num_peers)))
    (few_us, few_cols), (us, cols) = found
    assert few_cols < cols and few_us < us


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_parts_of_columns_of_no_tokens_are_put_in_queues(direction):
    avals = avals_of(Layer(ep=2, T=0, H=16, E=4, K=1).arguments())
    put = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=8, cols=8), put_cols=4)
    before, queued = (f.lower(*avals, mesh=hpmoe.Mesh(2), direction=direction) for f in (
        put, hpmoe.assign_queues(put, machine=SMALL_NPU)))
    assert any(b.columns and not b.size for b in before.deps.blocks) and queued.num_tasks == before.num_tasks
