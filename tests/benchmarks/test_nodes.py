"""Schemes over nodes: the bytes that they send between nodes, beside loops over tokens, and the command on them."""

import json
from types import SimpleNamespace

import ablation
import nodes
import numpy as np
import pytest
import script

import hpmoe
from hpmoe.commands.layer import Layer

EP, NODE, TOKENS, HIDDEN, LOCAL, TOP_K = 6, 2, 20, 4, 2, 3
SIZES = SimpleNamespace(ep=EP, tokens=TOKENS, hidden=HIDDEN, intermediate=3, experts=EP * LOCAL, top_k=TOP_K,
                        dtype="float32")
MACHINE = hpmoe.ascend_a2.replace(node_size=NODE)


def drawn(absent=0.0):
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((EP, TOKENS, EP * LOCAL)), axis=-1)[..., :TOP_K].astype(np.int32)
    ids[rng.random(ids.shape) < absent] = -1
    return ids


def one_expert():
    return np.broadcast_to(np.array([3, -1, -1], np.int32), (EP, TOKENS, TOP_K)).copy()


ROUTINGS = {"random": drawn, "absent ids": lambda: drawn(0.5), "one expert": one_expert}


def crossings(ids, scheme):
    """Rows, and entries with a weight, that go from a rank to another node, of all ranks, by a loop over tokens."""
    rows = entries = 0
    for source in range(EP):
        for token in ids[source]:
            owners = [int(e) // LOCAL for e in token if e >= 0]
            far = [o for o in owners if o // NODE != source // NODE]
            to_nodes = len({o // NODE for o in far})
            rows += {"direct": len(far), "rank": len(set(far)), "node": to_nodes, "rank and node": to_nodes}[scheme]
            entries += len(far)
    return rows, entries


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("scheme", nodes.SCHEMES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_bytes_between_nodes_are_those_of_the_scheme(name, scheme, direction):
    ids = ROUTINGS[name]()
    rows, entries = crossings(ids, scheme)
    line = Layer(SIZES, direction, MACHINE, ids, tuned=True, scheme=scheme).fused()
    if scheme == "node" and direction == "forward":
        numbers = 4 * rows * TOP_K
    else:
        numbers = 4 * entries * (2 if direction == "backward" else "rank" in scheme)
    assert line.link_bytes().across_nodes == 2 * rows * HIDDEN * 4 + numbers


def test_the_command_prints_and_draws_each_number_of_nodes(capsys, tmp_path):
    out = tmp_path / "nodes.svg"
    command = ["--machine=ascend_a2", "--nodes=2", "--tokens=16", "--hidden=64", "--intermediate=32",
               "--top_k=4"]
    assert script.main(ablation, [*command, "--json", f"--out={out}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["nodes"], r["scheme"]) for r in found["rows"]] == [
        (1, "direct"), (1, "rank"), *((2, scheme) for scheme in nodes.SCHEMES)]
    for count, scheme in found["fastest"].items():
        mine = {r["scheme"]: r["ms"] for r in found["rows"] if r["nodes"] == int(count)}
        assert mine[scheme] == min(mine.values()) > 0
    assert found["simulated"] and out.read_text().startswith("<?xml")
    o = SimpleNamespace(direction="forward", tokens=16, hidden=64, intermediate=32, top_k=4, experts=64, ep=8,
                        routing="zipf")
    shown = nodes.text(found["rows"], o, hpmoe.ascend_a2).splitlines()
    assert "zipf routing: simulated" in shown[0] and [line.split()[0] for line in shown[3:5]] == ["direct", "rank"]


@pytest.mark.parametrize("flags, told", [
    (["--nodes=513", "--machine=ascend_a2"], "--nodes=513: it must be at most 512, of 8 ranks on ascend_a2"),
    (["--nodes=1", "--machine=cpu"], "--nodes=1: it must be at most 0, of 1048576 ranks on cpu"),
    (["--nodes=64", "--machine=ascend_a2", "--tokens=4096"],
     "--tokens=4096: it must be at most 512 where they draw from 4096 experts on 512 ranks"),
])
def test_what_cannot_be_simulated_is_said(capsys, flags, told):
    assert script.main(ablation, flags) == 2
    assert told in capsys.readouterr().err
