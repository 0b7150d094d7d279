"""autotune: what it compares, that it takes the fastest, computes the same, and simulates nothing twice."""

import dataclasses
import functools
import importlib
import inspect
import json

import mindspore as ms
import numpy as np
import pytest
from helpers import SMALL_NPU, Layer, assert_close, numpy_moe_ffn, run_spmd

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, moe_ffn
from hpmoe.cli import main
from hpmoe.costs.start import start_us
from hpmoe.routing.workload import imbalanced_ids
from hpmoe.runtime.plan_key import plan_key
from hpmoe.testing import assert_same
from hpmoe.transforms.send_rows import SCHEMES
from hpmoe.tuning import compare_plans
from hpmoe.tuning.plan import Plan
from hpmoe.tuning.trials import EXHAUSTED, Trial, Trials

module = importlib.import_module("hpmoe.tuning.autotune")
LAYER = Layer(ep=2, T=24, H=16, I=8, E=4, K=2)
MACHINE = SMALL_NPU.replace(tile_rows=8, tile_cols=8)
HOT = imbalanced_ids(LAYER.ep, LAYER.T, LAYER.K, LAYER.E, imbalance=1.9)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpmoe"


@pytest.fixture
def refused(monkeypatch):
    """Returns a function after which every simulation is an AssertionError."""
    def refuse(*args, **kwargs):
        raise AssertionError("simulated")
    return lambda: monkeypatch.setattr(module, "outline", refuse)


def avals(layer=LAYER):
    return [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in layer.arguments()]


def program(f=moe_ffn, layer=LAYER, direction="forward"):
    traced = hpmoe.trace(f, *avals(layer), mesh=layer.mesh)
    return traced if direction == "forward" else hpmoe.rewriting.vjp(traced)


def compared(traced=None, **options):
    return compare_plans(traced or program(), **{"machine": MACHINE, "budget": 12, **options})


def times(found):
    return [(t.plan, t.us) for t in found.trials]


@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_a_budget_of_zero_is_the_options_auto(cache, refused, direction):
    refused()
    machine = hpmoe.machines.ascend_a2
    auto = hpmoe.chain(hpmoe.send_rows(machine=machine), hpmoe.tile_partition(rows="auto", cols="auto", machine=machine),
                       hpmoe.overlap_comm(put_cols="auto", returns=2), hpmoe.assign_queues)
    layer = Layer(ep=16, T=32, H=64, I=32, E=32, K=4, node_size=8)
    want, flow = (f.lower(*avals(layer), mesh=layer.mesh, direction=direction) for f in (
        auto(moe_ffn), hpmoe.autotune(moe_ffn, machine=machine, budget=0)))
    assert flow.ops == want.ops and flow.provenance[-3:] == want.provenance[-3:]
    assert all(map(np.array_equal, flow.queues, want.queues)) and not cache.exists()


@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_the_fastest_plan_is_taken(direction):
    traced = program(direction=direction)
    found = compared(traced, topk_ids=HOT)
    assert found.trials[0].plan == compared(traced, budget=0).chosen and found.trials[1].plan.policy == "round_robin"
    assert len({t.plan for t in found.trials}) == len(found.trials) == found.num_simulated == 12
    best = min(found.trials, key=lambda t: t.us)
    assert found.chosen == best.plan
    flow = hpmoe.autotune.apply_to(traced, machine=MACHINE, topk_ids=HOT, budget=12)
    assert start_us(flow, MACHINE) + hpmoe.simulate(flow, routing=HOT).span == pytest.approx(best.us)


def test_the_table_and_its_reason():
    plans = [Plan("direct", rows, 8) for rows in (8, 4, 16)]
    trials = Trial(plans[0], 30.0), Trial(plans[1], 12.0), Trial(plans[2], None, "too many tasks")
    found = Trials("moe_ffn", "forward", 2, "npu", trials, plans[1], EXHAUSTED, 3)
    title, names, *rows, chosen = str(found).splitlines()
    assert title == "moe_ffn on npu, 2 ranks, forward: simulated" and names.split() == ["simulated", *vars(plans[0])]
    assert [row.split()[:4] for row in rows] == [["30.0", "us", "1.00x", "direct"], ["*", "12.0", "us", "2.50x"],
                                                 ["failed", "direct", "16", "8"]]
    assert rows[2].endswith("too many tasks") and chosen == f"chosen: {found.reason}"
    assert found.reason == f"2.50 times as fast as the cost model's choice; 3 compared, {EXHAUSTED}"
    assert dataclasses.replace(found, chosen=plans[0], trials=trials[::2]).reason.startswith("no plan is faster than")
    assert "nothing was simulated" in compared(budget=0).reason and len(str(compared(budget=0)).splitlines()) == 2


def test_a_larger_budget_starts_with_the_same_trials(cache):
    few, many, every = (compared(budget=budget, fixed={"rows": 8, "scheme": "direct"}) for budget in (3, 6, 10_000))
    assert times(many)[:3] == times(few) and times(every)[:6] == times(many)
    assert (few.num_simulated, many.num_simulated) == (3, 3) and every.why_ended == EXHAUSTED
    assert len(list(cache.iterdir())) == 1


def test_kept_times_are_not_simulated_again(cache, refused):
    found, f = compared(), hpmoe.autotune(moe_ffn, machine=MACHINE)
    flow = f.lower(*avals(), mesh=Mesh(2))
    refused()
    again = compared()
    assert times(again) == times(found) and again.num_simulated == 0 and again.reason == found.reason
    assert hpmoe.autotune(moe_ffn, machine=MACHINE).lower(*avals(), mesh=Mesh(2)).provenance == flow.provenance
    for change in ({"machine": MACHINE.replace({"sync.task_us": 9.0})}, {"topk_ids": HOT},
                   {"traced": program(lambda *args: moe_ffn(*args) * 2.0)}, {"traced": program(direction="backward")}):
        with pytest.raises(AssertionError, match="simulated"):
            compared(**change)


def test_a_cache_of_something_else_is_ignored(cache):
    found = compared(budget=1)
    (path,) = cache.iterdir()
    whole = path.read_text()
    text, us = str(found.trials[0].plan), json.dumps(found.trials[0].us)
    for junk in (whole[:-20], "", "[]", "{}", whole.replace('"times"', '"x"'), whole.replace(text, "other"),
                 whole.replace('"key": "', '"key": "0'), *(whole.replace(us, bad) for bad in (
                     '"fast"', "[]", "-5", "NaN", "1e-9", "Infinity", "true", "1" + "0" * 400)), "[" * 200_000):
        assert junk != whole
        path.write_text(junk)
        again = compared(budget=1)
        assert times(again) == times(found) and again.num_simulated == 1, junk[:40]


def test_a_folder_that_cannot_be_written_is_a_warning(cache):
    cache.write_text("a file")
    with pytest.warns(UserWarning, match="autotune: the times of plans cannot be kept: "):
        assert compared(budget=1).num_simulated == 1


def test_plans_with_code_of_a_user_are_not_kept(cache, monkeypatch):
    def foreign(*args):
        raise TypeError("a primitive of a user's")
    monkeypatch.setattr("hpmoe.tuning.cached_trials.plan_key", foreign)
    assert compared(budget=2).num_simulated == compared(budget=2).num_simulated == 2 and not cache.exists()


def test_a_tuned_function_computes_the_same():
    args, cotangent = LAYER.arguments(), LAYER.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent)
    tuned = hpmoe.chain(hpmoe.autotune(budget=3), hpmoe.fuse_persistent)
    outs, grads = run_spmd(tuned(moe_ffn), 2, args, [cotangent])
    assert_close([*outs, *grads], [want, *want_grads])
    for tokens in (9, 0):
        sizes = avals(Layer(ep=2, T=tokens, H=8, I=4, E=4, K=2))
        assert_same(hpmoe.autotune(machine=MACHINE, budget=4), moe_ffn, sizes, Mesh(2), orders=2)


def test_a_tuned_function_keeps_name_doc_and_signature():
    tuned = hpmoe.autotune(moe_ffn, machine=MACHINE)
    assert (tuned.__name__, tuned.__doc__) == (moe_ffn.__name__, moe_ffn.__doc__) and tuned.level == "queues"
    assert inspect.signature(tuned) == inspect.signature(moe_ffn)


def test_schemes_are_compared_where_ranks_share_nodes():
    layer = Layer(ep=4, T=32, H=32, I=4, E=8, K=4, node_size=2)
    slow = MACHINE.replace({"link.node_size": 2, "link.node_bytes_per_us": 20.0})
    found = compared(program(layer=layer), machine=slow, fixed={"policy": "round_robin", "rows": 8, "cols": 8}, budget=5)
    us = {t.plan.scheme: t.us for t in found.trials if t.plan == dataclasses.replace(found.chosen, scheme=t.plan.scheme)}
    assert set(us) == set(SCHEMES) and found.chosen.scheme == min(us, key=us.get) != "direct"
    once = compared(hpmoe.send_rows(moe_ffn, scheme="deduplicated").lower(*avals(layer), mesh=layer.mesh), machine=slow)
    assert {t.plan.scheme for t in once.trials} <= {"direct", "hierarchical"}  # beside what the program has already
    args, cotangent = layer.arguments(), layer.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent)
    tuned = hpmoe.fuse_persistent(hpmoe.autotune(moe_ffn, machine=slow.replace(name="slow"), budget=0))
    assert_close(*([*outs, *grads] for outs, grads in (run_spmd(tuned, layer.mesh, args, [cotangent]),
                                                       ([want], want_grads))))


def test_settings_that_are_fixed_are_not_tuned():
    found = compared(fixed={"policy": "round_robin", "rows": 4, "signal": "peer"}, budget=12)
    assert {(t.plan.policy, t.plan.rows, t.plan.signal) for t in found.trials} == {("round_robin", 4, "peer")}
    assert len({(t.plan.cols, t.plan.scheme) for t in found.trials}) > 4


def test_functions_of_other_kinds():
    """Tunes functions without a route, with drops by weight, with deduplicated rows, with expert replicas, and on a CPU."""
    local = compare_plans(hpmoe.trace(lambda x, w: hpmoe.swiglu(x) @ w, ShapeDtypeStruct((64, 16), "float32"),
                                      ShapeDtypeStruct((8, 16), "float32")),
                          machine=MACHINE, budget=100)
    assert {(t.plan.scheme, t.plan.signal, t.plan.put_cols) for t in local.trials} == {("direct", "tile", "auto")}
    dropping = functools.partial(moe_ffn, capacity_factor=0.5, drop_policy="probs")
    for f in (dropping, hpmoe.send_rows(moe_ffn, scheme="deduplicated"),
              hpmoe.replicate_experts(moe_ffn, loads=[9, 1, 1, 1], replicas=1)):
        for ids in (None, HOT):
            assert hpmoe.autotune(f, machine=MACHINE, topk_ids=ids, budget=3).lower(*avals(), mesh=Mesh(2)).queues
    assert compared(machine=hpmoe.cpu(2), budget=4).num_simulated == 4


def test_a_plan_that_cannot_be_simulated_is_not_taken(monkeypatch):
    """The search ends if the first plan cannot be simulated."""
    outline = module.outline

    def limited(flow, **options):
        if flow.provenance[-1].endswith(policy + ")"):
            raise hpmoe.ArgumentError("hpmoe.simulate: too many tasks")
        return outline(flow, **options)

    monkeypatch.setattr(module, "outline", limited)
    policy = "round_robin"
    found = compared()
    failed = [t for t in found.trials if t.us is None]
    assert failed and found.chosen.policy == "critical_path" and "failed" in str(found) and "too many tasks" in str(found)
    policy = "critical_path"
    with pytest.warns(UserWarning, match="autotune: the cost model's choice is taken for moe_ffn: .*too many tasks"):
        flow = hpmoe.autotune(moe_ffn, machine=MACHINE, topk_ids=HOT).lower(*avals(), mesh=Mesh(2))
    assert "critical_path" in flow.provenance[-1]


def test_topk_ids_may_be_arrays_lists_or_tensors(refused):
    """One array of all ranks, or one of each; plans of a kernel are kept with them."""
    want = hpmoe.autotune(moe_ffn, machine=MACHINE, topk_ids=HOT).lower(*avals(), mesh=Mesh(2)).provenance
    refused()
    for ids in (list(HOT), HOT.tolist(), ms.Tensor(HOT), list(map(ms.Tensor, HOT))):
        assert hpmoe.autotune(moe_ffn, machine=MACHINE, topk_ids=ids).lower(*avals(), mesh=Mesh(2)).provenance == want
        assert plan_key(program(), hpmoe.autotune(moe_ffn, topk_ids=ids).staged.steps)


def test_wrong_topk_ids_are_refused_by_name():
    ids = np.zeros((2, 24, 2), np.int32)
    for wrong, name in ((ids[:1], "topk_ids"), ([ids[0], ids[1][:4]], r"topk_ids\[1\]"), (ids + 4, r"topk_ids\[0\]")):
        f = hpmoe.autotune(moe_ffn, machine=MACHINE, topk_ids=wrong)
        with pytest.raises(hpmoe.ArgumentError, match=f"autotune: {name} is"):
            f.lower(*avals(), mesh=Mesh(2))
    assert len(repr(f)) < 200


def test_the_command_prints_the_table(capsys):
    sizes = ["--ep=2", "--tokens=64", "--hidden=32", "--intermediate=16", "--experts=4", "--top_k=2", "--imbalance=1.5"]
    assert main(["tune", *sizes, "--budget=3", "--policy=round_robin", "--tile_rows=16", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["simulated"] and [p["direction"] for p in out["passes"]] == ["forward", "backward"]
    for found in out["passes"]:
        assert len(found["trials"]) == found["num_simulated"] == 3 and found["makespan_ms"] <= found["default_ms"]
        assert {(t["policy"], t["rows"]) for t in found["trials"]} == {("round_robin", 16)}
    assert main(["tune", *sizes, "--budget=3", "--policy=round_robin", "--tile_rows=16", "--direction=forward"]) == 0
    assert f"chosen: {out['passes'][0]['reason']}" in capsys.readouterr().out
    assert main(["tune", *sizes, "--scheme=deduplicated", "--budget=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passes"][0]["chosen"]["scheme"] == "deduplicated"
    for flags, told in ((["--scheme=node"], "--scheme=node: it must be one of direct, deduplicated"),
                        (["--combine_order=sequential"], "--combine_order=sequential: it must be left out")):
        assert main(["tune", *sizes, *flags]) == 2 and f"flag {told}" in capsys.readouterr().err
