"""Schemes over nodes: what the launches compute, and the bytes that they send between nodes, beside loops over tokens."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import hpmoe
from hpmoe.cli import main
from hpmoe.commands import nodes
from hpmoe.commands.published_work import Sizes
from hpmoe.routing.relays import relay_ids
from hpmoe.routing.routing import make_routing

EP, NODE, TOKENS, HIDDEN, LOCAL, TOP_K = 6, 2, 20, 4, 2, 3
SIZES = Sizes(EP, TOKENS, HIDDEN, 3, EP * LOCAL, TOP_K, "float32")
MACHINE = hpmoe.ascend_a2.replace(node_size=NODE)


def drawn(absent=0.0):
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((EP, TOKENS, EP * LOCAL)), axis=-1)[..., :TOP_K].astype(np.int32)
    ids[rng.random(ids.shape) < absent] = -1
    return ids


def one_expert():
    return np.broadcast_to(np.array([3, -1, -1], np.int32), (EP, TOKENS, TOP_K)).copy()


ROUTINGS = {"random": drawn, "absent ids": lambda: drawn(0.5), "one expert": one_expert}


@pytest.mark.parametrize("name", ROUTINGS)
def test_relays_spread_what_they_receive(name):
    ids = ROUTINGS[name]()
    first, second = relay_ids(ids, LOCAL, NODE)
    routing = make_routing(first, EP)
    for rank in range(EP):
        received = list(zip(routing.source_of_row[rank], routing.entry_of_row[rank] // (EP // NODE), strict=True))
        for (source, token), spread in zip(received, second[rank], strict=False):
            assert source % NODE == rank % NODE
            in_node = [e >= 0 and e // LOCAL // NODE == rank // NODE for e in ids[source, token]]
            assert spread.tolist() == np.where(in_node, ids[source, token], -1).tolist()
        assert len(received) == len(second[rank])


@pytest.mark.parametrize("name", ROUTINGS)
def test_the_three_launches_compute_the_layer(name):
    ids = ROUTINGS[name]()
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal((EP, TOKENS, HIDDEN)), rng.standard_normal((EP, TOKENS, TOP_K))
    up, down = rng.standard_normal((EP, LOCAL, HIDDEN, 6)), rng.standard_normal((EP, LOCAL, 3, HIDDEN))

    def layer(tokens, *args):
        avals = [hpmoe.Aval(a.shape[1:], "int32" if a.dtype == np.int32 else "float32") for a in args]
        program = hpmoe.trace(hpmoe.moe_ffn, *avals, mesh=hpmoe.Mesh(EP))
        return np.array([out for out, in hpmoe.evaluate(program, list(zip(*args, strict=True)), dtype="float64")])

    first, second = relay_ids(ids, LOCAL, NODE)
    send = nodes._program(SIZES, first, TOP_K)
    there = np.zeros((EP, second.shape[1], HIDDEN)), np.zeros((EP, second.shape[1], TOP_K))
    for rank, rows in enumerate(hpmoe.evaluate(send, list(zip(x, first, weights, strict=True)), dtype="float64")):
        for array, mine in zip(there, rows, strict=True):
            array[rank, :len(mine)] = mine
    sums = layer(second.shape[1], there[0], second, there[1], up, down)
    back = hpmoe.vjp(nodes._program(SIZES, first, 0))  # sums up to its tokens what a rank has for the rows that it received
    num_rows = [len(rows) for rows in make_routing(first, EP).entry_of_row]
    given = {"topk": first, "rows": [s[:n] for s, n in zip(sums, num_rows, strict=True)]}
    arrays = [[given["topk"][r] if v.aval.dtype == "int32" else given["rows"][r] for v in back.inputs] for r in range(EP)]
    got = np.array([out for out, in hpmoe.evaluate(back, arrays, dtype="float64")])
    np.testing.assert_allclose(got, layer(TOKENS, x, ids, weights, up, down), rtol=1e-12, atol=1e-12)


def crossings(ids, scheme):
    """Rows, and entries with a weight, that go from a rank to another node, of all ranks, by a loop over tokens."""
    rows = entries = 0
    for source in range(EP):
        for token in ids[source]:
            owners = [int(e) // LOCAL for e in token if e >= 0]
            far = [o for o in owners if o // NODE != source // NODE]
            rows += {"direct": len(far), "rank once": len(set(far)), "node once": len({o // NODE for o in far}),
                     "all-gather": EP // NODE - 1}[scheme]
            entries += len(far)
    return rows, entries


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("scheme", nodes.SCHEMES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_bytes_between_nodes_are_those_of_the_scheme(name, scheme, direction):
    ids = ROUTINGS[name]()
    rows, entries = crossings(ids, scheme)
    lines = nodes.launches(scheme, SIZES, ids, MACHINE, direction)
    if scheme == "all-gather":
        numbers = 4 * rows * TOP_K * (2 if direction == "forward" else 1)  # ids and weights, or the gradients of these
    elif scheme == "node once" and direction == "forward":
        numbers = 4 * rows * TOP_K
    else:
        numbers = 4 * entries * (2 if direction == "backward" else scheme == "rank once")
    assert sum(line.link_bytes().across_nodes for line in lines) == 2 * rows * HIDDEN * 4 + numbers
    assert [line.link_bytes().across_nodes for line in lines][1:-1] == [0] * (len(lines) - 2)


def test_the_command_prints_and_draws_each_number_of_nodes(capsys, tmp_path):
    out = tmp_path / "nodes.svg"
    command = ["simulate", "--machine=ascend_a2", "--nodes=2", "--tokens=16", "--hidden=64", "--intermediate=32",
               "--top_k=4"]
    assert main([*command, "--json", f"--out={out}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["nodes"], r["scheme"]) for r in found["rows"]] == [
        (1, "direct"), (1, "rank once"), *((2, scheme) for scheme in nodes.SCHEMES)]
    for count, scheme in found["fastest"].items():
        mine = {r["scheme"]: r["ms"] for r in found["rows"] if r["nodes"] == int(count)}
        assert mine[scheme] == min(mine.values()) > 0
    for r in found["rows"]:
        num_launches = 3 if r["scheme"] == "all-gather" else 1
        assert r["ms"] == pytest.approx(sum(r["launches_ms"])) and len(r["launches_ms"]) == num_launches
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
    assert main(["simulate", *flags]) == 2
    assert told in capsys.readouterr().err
