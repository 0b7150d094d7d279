"""tune: what it tries, that it never makes a function slower on the model or another one, and what it keeps."""

import json
import re
import sys
import time

import mindspore as ms
import numpy as np
import pytest
from helpers import SMALL_NPU, Layer, assert_close, numpy_moe_ffn, run_spmd, tensors

import hpmoe
from hpmoe import Aval, Mesh, TransformError, moe_ffn, tune as tune_function
from hpmoe.cli import main
from hpmoe.routing.workload import imbalanced_ids
from hpmoe.tuning import kept
from hpmoe.tuning.choose_schedule import Schedule
from hpmoe.tuning.search import EXHAUSTED, search

LAYER = Layer(ep=2, T=24, H=16, I=8, E=4, K=2)
MACHINE = SMALL_NPU.replace(tile_rows=8, tile_cols=8)
SPACE = {"rows": (8, 4), "cols": (8, 16), "order": ("ratr",), "policy": ("critical_path", "round_robin"),
         "put_cols": (None,), "returns": (None,), "scheme": ("direct",)}
module = sys.modules["hpmoe.tuning.tune"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_kept", {})
    return tmp_path / "hpmoe"


def avals(layer=LAYER):
    return [Aval(a.shape[1:], str(a.dtype)) for a in layer.arguments()]


def tune(f=moe_ffn, args=None, **options):
    options = {"machine": MACHINE, "mesh": Mesh(2), "space": SPACE, "budget_s": 60.0, **options}
    return tune_function(f, *(args or avals()), **options)


def times(tuned):
    return [(t.settings, t.us) for t in tuned.trials]


@pytest.mark.parametrize("direction", ("forward", "backward", "both"))
def test_the_choice_is_the_fastest_trial_and_its_time_that_of_its_taskflow(direction):
    tuned = tune(direction=direction)
    assert tuned.best.us == min(t.us for t in tuned.trials) <= tuned.trials[0].us and tuned.why_ended == EXHAUSTED
    assert str(tuned.trials[0]) == ("scheme=direct, policy=critical_path, signal=tile, order=ratr, rows=8, cols=8, "
                                     "put_cols=None, returns=None, prefetch=None")
    assert len(set(t.settings for t in tuned.trials)) == len(tuned.trials) > 5
    if direction == "forward":
        flow = tuned(moe_ffn).function.lower(*avals(), mesh=Mesh(2))
        rows = flow.routes[0].max_rows
        assert flow.provenance[-1] == f"assign_queues({MACHINE.name}, {tuned.settings['policy']})" and rows >= 48
    text = str(tuned).splitlines()
    assert len(text) == len(tuned.trials) + 4 and text[-1] == f"chosen: {tuned.reason}"
    assert sum(row.startswith("*") for row in text) == 1


def test_the_same_trials_whatever_the_time():
    first, again = (tune(max_trials=4, cache=False) for _ in range(2))
    assert times(first) == times(again) and first.why_ended == "4 trials were made"
    assert times(tune(cache=False))[:4] == times(first)
    only = tune(budget_s=0, cache=False)
    assert len(only.trials) == 1 and only.best is only.trials[0] and only.why_ended == "0 s were over"


def test_a_tuned_function_computes_the_same():
    tuned, args, cotangent = tune(), LAYER.arguments(), LAYER.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent)
    outs, grads = run_spmd(tuned(moe_ffn), 2, args, [cotangent])
    assert_close([*outs, *grads], [want, *want_grads])


def test_what_raises_is_noted_and_not_chosen():
    def lost(flow, machine):
        raise KeyError("no such worker")

    def none(flow, machine):
        return [np.zeros(0, int)] * machine.num_queues
    tuned = tune(space={**SPACE, "policy": ("critical_path", lost, none)})
    failed = [t for t in tuned.trials if t.us is None]
    assert len(failed) >= 2 and tuned.settings["policy"] == "critical_path"
    assert "TransformError: assign_queues: policy lost raised KeyError: 'no such worker'" in str(tuned)
    assert "TransformError: assign_queues: policy none made no legal schedule" in str(tuned)
    with pytest.raises(TransformError, match="policy lost raised KeyError"):
        tune(space={**SPACE, "policy": (lost, "critical_path")})


def test_routing_decides(cache):
    """Where the arrays are given their ids count, and other routing is another search."""
    sizes = LAYER.ep, LAYER.T, LAYER.K, LAYER.E
    hot = imbalanced_ids(*sizes, imbalance=1.9)
    even, uneven = tune(max_trials=2), tune(max_trials=2, routing=hot)
    assert uneven.trials[0].us > even.trials[0].us and len(list(cache.glob("tune-*"))) == 2
    args = LAYER.arguments()
    args[1] = hot
    given = tune(hpmoe.spmd(moe_ffn, Mesh(2)), tensors(args), mesh=None, max_trials=2)
    assert given.is_cached and times(given) == times(uneven)


def test_other_loads_than_those_planned_for(cache):
    """Copies get what the routing sends them, be the estimate as wrong as it may; and what is known of them counts."""
    hot = imbalanced_ids(LAYER.ep, LAYER.T, LAYER.K, LAYER.E, imbalance=1.9)
    loads = np.bincount(hot.reshape(-1), minlength=LAYER.E) + 1.0
    for estimate in (loads, loads[::-1], loads + [0, 0, 3, 0]):
        f = hpmoe.replicate_experts(moe_ffn, loads=estimate, replicas=2)
        tuned = tune(f, routing=hot, max_trials=1, direction="forward")
        assert not tuned.is_cached and tune(f, routing=hot, max_trials=1, direction="forward").is_cached
        assert run_spmd(tuned(f), 2, [LAYER.arguments()[0], hot, *LAYER.arguments()[2:]], [LAYER.cotangent()])
    placements = [hpmoe.routing.balance.place_replicas(x, ep_size=2, replicas=2) for x in (loads, loads + [0, 0, 3, 0])]
    assert str(placements[0]) == str(placements[1]) and placements[0] != placements[1]


def test_weights_that_decide_what_is_dropped():
    """Those among the arguments; where there are none, all entries weigh the same."""
    def capped(x, ids, weights, gate_up, down):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=gate_up.shape[0], capacity_factor=0.5, drop_policy="probs",
                                     topk_weights=weights)
        return hpmoe.combine(hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route)), down, route),
                             route, weights)
    hot = imbalanced_ids(LAYER.ep, LAYER.T, LAYER.K, LAYER.E, imbalance=1.9)
    assert tune(capped, max_trials=1).best.us > 0 and tune(capped, max_trials=1, routing=hot).best.us > 0
    args = LAYER.arguments()
    first, again = (tune(hpmoe.spmd(capped, Mesh(2)), tensors([*args[:2], w, *args[3:]]), mesh=None, max_trials=1)
                    for w in (args[2], args[2][:, ::-1].copy()))
    assert not first.is_cached and not again.is_cached and first.best.us > 0 and again.best.us > 0


def test_between_nodes_a_token_is_sent_once():
    """Where links are slow, and not where they are not; the tuned function then computes the same with it."""
    layer = Layer(ep=2, T=64, H=32, I=4, E=8, K=4)
    slow = MACHINE.replace({"link.node_size": 1, "link.node_bytes_per_us": 20.0})
    for machine, scheme in ((slow, "rank"),
                            (MACHINE.replace({"link.bytes_per_us": 1e9, "link.worker_bytes_per_us": 1e9}), "direct")):
        tuned = tune(args=avals(layer), machine=machine, space={"rows": (8,), "cols": (8,), "policy": ("critical_path",)})
        assert tuned.settings["scheme"] == scheme, machine
    chosen, args, cotangent = tune(args=avals(layer), machine=slow, max_trials=3), layer.arguments(), layer.cotangent()
    once = tune(args=avals(layer), machine=slow, space={**SPACE, "scheme": ("rank",)}, max_trials=1)
    assert "deduplicate_rows" in repr(once(moe_ffn)) and "scheme" in chosen.settings
    want, want_grads = numpy_moe_ffn(args, cotangent)
    outs, grads = run_spmd(once(moe_ffn), 2, args, [cotangent])
    assert_close([*outs, *grads], [want, *want_grads])
    already = hpmoe.deduplicate_rows(moe_ffn)
    for f, args, ep in ((already, avals(layer), 2), (moe_ffn, avals(Layer(ep=1, T=4, E=4, K=2)), 1),
                        (moe_ffn, avals(Layer(ep=2, K=1)), 2)):
        assert "scheme" not in tune(f, args, mesh=Mesh(ep), max_trials=1).settings
    assert tune(already, avals(layer), machine=slow, max_trials=1).trials[0].us == once.trials[0].us


def test_every_scheme_is_tried_where_ranks_share_nodes():
    """The fastest is chosen, no other is simulated faster, and it computes the same; on one node there are no relays."""
    layer = Layer(ep=4, T=32, H=32, I=4, E=8, K=4, node_size=2)
    slow = MACHINE.replace({"link.node_size": 2, "link.node_bytes_per_us": 20.0})
    space = {name: values[:1] for name, values in SPACE.items() if name != "scheme"}
    tuned = tune(args=avals(layer), machine=slow, mesh=layer.mesh, space=space)
    us = {dict(t.settings)["scheme"]: t.us for t in tuned.trials}
    assert list(us) == ["direct", "rank", "node", "rank and node"]
    assert tuned.settings["scheme"] == min(us, key=us.get) == "node"
    args, cotangent = layer.arguments(), layer.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent)
    outs, grads = run_spmd(tuned(moe_ffn), layer.mesh, args, [cotangent])
    assert_close([*outs, *grads], [want, *want_grads])
    alone = tune(args=avals(layer), machine=slow, mesh=Mesh(4), space=space)
    assert {dict(t.settings)["scheme"] for t in alone.trials} == {"direct", "rank"}


def test_the_second_trial_takes_sizes_by_the_machine():
    """So that the choice is no slower than what `hpmoe simulate` shows either."""
    tuned = tune(space=None, max_trials=2)
    first, second = (dict(t.settings) for t in tuned.trials)
    assert (first["rows"], first["cols"], first["put_cols"]) == (8, 8, None)
    assert second == {**first, "rows": "auto", "cols": "auto", "put_cols": "auto"}
    outs, _ = run_spmd(tuned(moe_ffn), 2, LAYER.arguments(), [LAYER.cotangent()])
    assert_close(outs, [numpy_moe_ffn(LAYER.arguments(), LAYER.cotangent())[0]])


def test_what_was_found_is_kept(cache, monkeypatch):
    results = []
    monkeypatch.setattr(module, "search", lambda *args: results.append(search(*args)) or results[-1])
    found = tune(max_trials=3)
    (path,) = cache.glob("tune-*")
    monkeypatch.setattr(module, "search", None)  # nobody searches from here on
    assert tune(max_trials=3).is_cached and not found.is_cached
    monkeypatch.setattr(kept, "_kept", {})
    again = tune(max_trials=3)
    assert again.is_cached and (times(again), again.reason) == (times(found), found.reason) and "tried before" in str(again)
    monkeypatch.setattr(module, "search", lambda *args: results[0])
    monkeypatch.setattr(kept, "_kept", {})
    whole = path.read_text()
    second = str(found.trials[1].us)
    for junk in (whole[:-20], "", "[]", "{}", whole.replace(second, '"fast"'), whole.replace(second, "[]"),
                 whole.replace('"trials"', '"x"'), *(whole.replace(second, us) for us in ("-5", "NaN", "1e-9", "Infinity",
                 "true", "1" + "0" * 400)), "[" * 200_000, '{"key":' * 200_000, whole.replace("critical_path", "best"),
                 whole.replace('"rows",\n     8', '"rows",\n     -8'), whole + " " * (16 << 20)):
        assert junk != whole
        path.write_text(junk)
        monkeypatch.setattr(kept, "_kept", {})
        assert not tune(max_trials=3).is_cached and tune(max_trials=3).is_cached, junk[:40]
    for change in ({"machine": MACHINE.replace({"sync.task_us": 9.0})},
                   {"args": avals(Layer(ep=2, T=23, H=16, I=8, E=4, K=2))}, {"f": lambda *a: moe_ffn(*a) * 2.0},
                   {"direction": "forward"}, {"max_trials": 2}):
        assert not tune(**{"max_trials": 3, **change}).is_cached, change


def test_a_search_cut_short_is_taken_for_no_larger_budget():
    assert not tune(budget_s=0).is_cached
    assert tune(budget_s=0).is_cached and not tune(budget_s=60).is_cached
    assert len(tune(budget_s=0).trials) > 1  # the whole search serves all


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (pytest.warns(UserWarning, match="choose_schedule: what was found cannot be kept: .*"),
          pytest.warns(UserWarning, match="hpmoe.tune: what was found cannot be kept: .*")):
        assert tune(max_trials=1).trials


def test_what_choose_schedule_takes_is_tried_and_told(monkeypatch):
    """Of each pass, where it is in the space."""
    taken = iter([Schedule(8, 16, "stage_order"), Schedule(8, 2048, "round_robin")])
    monkeypatch.setattr(module, "chosen", lambda *args, **options: (next(taken), None))
    tuned = tune(space={"cols": ["auto", 16]}, max_trials=3)
    by_machine, third = (dict(t.settings) for t in tuned.trials[1:3])
    assert third == {**by_machine, "rows": 8, "cols": 16, "policy": "stage_order"}
    assert str(tuned).splitlines()[-2] == "choose_schedule takes: forward stage_order 8 x 16; backward round_robin 8 x 2048"


def test_other_functions():
    """Without a route there is nothing to send; a Program transform stays under the chain."""
    x, w = Aval((64, 16), "float32"), Aval((8, 16), "float32")
    tuned = tune_function(lambda x, w: hpmoe.swiglu(x) @ w, x, w, machine=MACHINE, max_trials=6)
    assert sorted(tuned.settings) == ["cols", "policy", "rows"]
    saved = hpmoe.save_for_backward(moe_ffn, policy="dispatched_rows")
    assert tune(saved, max_trials=1).trials[0].us != tune(max_trials=1).trials[0].us
    assert "save_for_backward" in repr(tune(saved, max_trials=1)(saved))
    on_cpu = tune_function(lambda x: x * 2.0, ms.Tensor(np.ones((4, 4), np.float32)), max_trials=2)
    assert on_cpu.machine.unified and on_cpu.ep_size == 1


def test_progress_is_shown_where_it_is_asked_for(capsys, monkeypatch):
    said = []

    def slow(*args):
        for _ in range(6000 if is_asked_for else 30):
            time.sleep(0.01)
            said.append(capsys.readouterr().err)
            if said[-1]:
                break
        return search(*args)

    monkeypatch.setattr(module, "search", slow)
    monkeypatch.setattr("hpmoe.support.progress.FIRST", 0.01)
    is_asked_for = False
    tune(max_trials=1, cache=False)
    assert not any(said)
    is_asked_for = True
    tune(max_trials=1, cache=False, verbose=is_asked_for)
    assert re.match(r"hpmoe\.tune: +\d+ s  ", said[-1])


def test_the_command(capsys):
    sizes = ["--ep=2", "--tokens=64", "--hidden=32", "--intermediate=16", "--experts=4", "--top_k=2", "--imbalance=1.5"]
    sizes.append("--budget=600")
    assert main(["tune", *sizes, "--max_trials=3", "--policy=round_robin", "--tile_rows=16", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["simulated"] and len(out["trials"]) == 3 and out["makespan_ms"] <= out["default_ms"] and not out["cached"]
    assert {(t["policy"], t["rows"]) for t in out["trials"]} == {("round_robin", 16)}
    assert main(["tune", *sizes, "--max_trials=3", "--policy=round_robin", "--tile_rows=16"]) == 0
    text = capsys.readouterr().out
    assert "simulated, tried before" in text and "chosen: " + out["reason"] in text
    assert main(["tune", *sizes, "--machine=ascend_a2", "--ep=16", "--experts=32", "--direction=forward",
                 "--policy=round_robin", "--max_trials=8", "--json"]) == 0
    assert len({t["scheme"] for t in json.loads(capsys.readouterr().out)["trials"]}) >= 4
    assert main(["tune", *sizes, "--dedup", "--max_trials=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["scheme"] == "rank"
    for flags, told in ((["--dedup", "--scheme=node"], "--scheme=node: it must be rank, or left out, with --dedup"),
                        (["--combine_order=sequential"], "--combine_order=sequential: it must be left out")):
        assert main(["tune", *sizes, *flags]) == 2 and f"flag {told}" in capsys.readouterr().err
    assert main(["tune", *sizes, "--max_trials=1", "--replicas=1", "--fresh", "--direction=forward"]) == 0
    assert "1 tried" in capsys.readouterr().out


def test_rows_are_rounded_only_where_that_is_asked_for():
    """It changes what is computed. Where links are slow, half the bytes are chosen, and the chain says so."""
    layer, slow = Layer(ep=2, T=64, H=64, I=8, E=4, K=2), MACHINE.replace({"link.bytes_per_us": 200.0})
    assert "quantize_rows" not in tune(args=avals(layer), machine=slow, max_trials=1).settings
    tuned = tune(args=avals(layer), machine=slow, max_trials=8, space={
        name: values[:1] for name, values in SPACE.items()} | {"quantize_rows": (None, "int8")})
    assert tuned.settings["quantize_rows"] == "int8" and tuned.best.us < tuned.trials[0].us
    assert "quantize_rows" in repr(tuned(moe_ffn))
