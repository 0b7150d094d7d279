"""permute.py: what it times is right, and what has no room says so."""

import functools
import json

import numpy as np
import permute
import pytest
import script

from hpmoe.support.errors import LaunchError

TINY = ["--tokens=32", "--hidden=8", "--repeats=2"]


@pytest.fixture(autouse=True)
def few_entries(monkeypatch):
    monkeypatch.setattr(permute, "sort_times", functools.partial(permute.sort_times, (2**10, 2**12)))


def test_every_side_is_timed(capsys):
    assert script.main(permute, [*TINY, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [case["dtype"] for case in report["cases"]] == ["float32", "bfloat16"]
    for case in report["cases"]:
        assert case["bytes"] == 32 * 8 * 8 * (4 if case["dtype"] == "float32" else 2)
        assert {"copy", "sort", "hpmoe forward", "hpmoe backward", "MindSpore forward"} <= case["seconds"].keys()
        unsorted, by_rank, by_expert = case["requests"]
        assert len(report["sort"]["seconds"]) == 2
        assert 256 >= unsorted >= by_rank >= by_expert > 0


def test_its_text_has_what_the_ratios_are_of(capsys):
    assert script.main(permute, [*TINY, "--dtype=float32"]) == 0
    out = capsys.readouterr().out
    assert "32 tokens x 8 float32" in out and "of the copy: forward" in out and "non-temporal stores" in out


def test_what_has_no_room_is_left_out_by_name(capsys, monkeypatch):
    monkeypatch.setattr(permute, "free_bytes", lambda: 100)
    assert script.main(permute, [*TINY, "--dtype=float32"]) == 0
    assert "skipped, its rows take" in capsys.readouterr().out


def test_a_wrong_side_is_an_error():
    case = permute.Case(32, 8, "float32")
    forward = case.sides["hpmoe forward"]
    case.sides["hpmoe forward"] = lambda: forward() * 2.0
    with pytest.raises(LaunchError, match="permute rows differently"):
        case.measured(1)


def test_requests_are_counted_one_by_one():
    ids = np.random.default_rng(0).integers(0, 256, (40, 3)).astype(np.int32)
    flat = ids.reshape(-1)
    places = np.argsort(np.argsort(flat, kind="stable"))
    by_hand = []
    for key in (range(flat.size), [(e // 32, i) for i, e in enumerate(flat)], list(places)):
        order = sorted(range(flat.size), key=lambda i: key[i])
        by_hand.append(1 + sum(not (places[b] == places[a] + 1 and flat[a] == flat[b])
                               for a, b in zip(order, order[1:], strict=False)))
    assert permute.requests(ids, places) == by_hand
