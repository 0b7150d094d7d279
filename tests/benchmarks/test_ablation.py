"""ablation.py: techniques and rules, each off alone and on alone."""

import json

import ablation
import numpy as np
import pytest
import rules
import script
from ablation import distinct_ranks
from orders import by_destination, interleaved
from simulated_layers import NPU, plan

import hpmoe
from hpmoe.scheduling.rules import RULES
from hpmoe.transforms.assign_queues import round_robin


def test_orders_of_the_ablation():
    """Each is a legal schedule of the same tasks; weight gradients follow the matmuls of their expert, and puts
    destinations."""
    flow = plan(ep=4, direction="backward", make=hpmoe.overlap_comm, T=200)
    is_grad = np.array([op.opcode == "WGRAD" for op in flow.ops])
    put = next(i for i, op in enumerate(flow.ops) if op.opcode == "PUT")
    base, *others = (hpmoe.assign_queues.apply_to(flow, machine=NPU, policy=policy) for policy in (
        round_robin, interleaved(round_robin), by_destination(round_robin)))
    for other in others:
        hpmoe.verify(other)
    places = [np.concatenate([np.flatnonzero(is_grad[f.tasks["op"][q]]) for q in f.queues]).mean()
              for f in (base, others[0])]
    assert places[1] < places[0]
    peers = [flow.tasks["peer"][q[flow.tasks["op"][q] == put]] for q in others[1].queues]
    assert sum(map(len, peers)) > 8 and all((np.diff(p) >= 0).all() for p in peers)
    assert distinct_ranks(np.array([[[0, 1, 2, 7]]]), 4) == 0.5


def test_ablation(capsys, tmp_path):
    out = tmp_path / "ablation.png"
    flags = ["--tokens=128", "--hidden=256", "--intermediate=128", "--ep=4", "--experts=8", "--top_k=2"]
    assert script.main(ablation, [*flags, "--most_ranks=4", "--json", "--direction=backward", f"--out={out}"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {r["imbalance"] for r in rows} == {1, 2, 4} and {r["ep"] for r in rows} == {4}
    assert len({r["variant"] for r in rows}) == 4 + 2 * len(ablation.TECHNIQUES) and all(r["makespan_ms"] > 0 for r in rows)
    assert all(0.25 <= r["rows_with_dedup"] <= 1 for r in rows)
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size < 100_000
    assert script.main(ablation, [*flags, "--most_ranks=2"]) == 0
    assert "simulated" in capsys.readouterr().out
    assert script.main(ablation, ["--out=x.gif"]) == 2
    assert "flag --out=x.gif: it must be a file whose name ends in .png or .svg" in capsys.readouterr().err


@pytest.mark.slow
def test_worth_of_rules(capsys, monkeypatch):
    """Every rule is switched off for every layer; those of the links between nodes are worth much there."""
    chosen = {name: layer for name, layer in rules.layers().items() if name in ("nodes b", "64x64")}
    monkeypatch.setattr(rules, "layers", lambda: chosen)
    assert script.main(ablation, ["--rules", "--json"]) == 0
    found = {r["layer"]: r["without"] for r in json.loads(capsys.readouterr().out)["rows"]}
    assert set(found) == set(chosen) and all(set(of_layer) == set(RULES) for of_layer in found.values())
    assert found["nodes b"]["some_compute"] > 0.1 and found["nodes b"]["round_the_nodes"] > 0.03
    assert found["64x64"]["round_the_nodes"] == 0 == found["64x64"]["copies_in_turn"]


def test_flags_that_say_nothing_are_refused(capsys):
    for flags, told in ((["--rules", "--machine=cpu"], "flag --machine=cpu: it must be left out with --rules"),
                        (["--routing=zipf"], "flag --routing=zipf: it must be given with --nodes")):
        assert script.main(ablation, flags) == 2 and told in capsys.readouterr().err
