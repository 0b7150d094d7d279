"""Pictures and pages of runs: they stand alone, stay small, and say what is simulated."""

import json
import re
from html.parser import HTMLParser

import pytest
from simulated_layers import NPU, plan
from small_timelines import handmade, two_task_flow

import hpmoe
from hpmoe.timelines.chrome import BINS, chrome_json
from hpmoe.timelines.html import html


@pytest.fixture(scope="module")
def line():
    return hpmoe.simulate(plan(T=2048, H=1024))


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("meta", "br", "rect", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_needs_nothing_else(line):
    measured = handmade(two_task_flow(2), (0, 1, 5), (2, 3, 9))
    text = html([line, measured], ["a <b>", "b"])
    page = Balanced()
    page.feed(text)
    assert page.open == [] and not {"script", "link", "img", "iframe"} & page.tags
    assert not re.search(r"https?:|src=|href=|url\(|@import", text)
    assert "a &lt;b&gt;" in text and "critical path, simulated" in text and "(measured)" in text
    for words in ("aic busy", "exposed communication", "waiting for grouped_matmul", " | ".join(line.flow.provenance)):
        assert words in text
    assert len(line.html()) < 2_000_000


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_many_workers_and_of_two(line, tmp_path, suffix):
    for i, run in enumerate((line, handmade(two_task_flow(2), (0, 1, 5), (2, 3, 9)))):
        path = tmp_path / f"{i}.{suffix}"
        run.picture(path)
        assert 1000 < path.stat().st_size < 2_000_000


def test_arrows_lead_from_a_signal_to_what_waited_and_are_as_many_as_asked_for(line):
    for most in (0, 5, 10_000):
        events = json.loads(chrome_json([line], max_arrows=most))["traceEvents"]
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        starts = {e["id"]: e for e in events if e["ph"] == "s"}
        assert set(ends) == set(starts) and len(ends) == min(most, (line.simulated.released_by >= 0).sum())
        bodies = [e for e in events if e["ph"] == "X" and e["cat"] != "wait"]
        for key, start in list(starts.items())[:20]:
            assert start["ts"] <= ends[key]["ts"]
            for end in (start, ends[key]):
                assert any((b["pid"], b["tid"]) == (end["pid"], end["tid"]) and b["ts"] <= end["ts"] <= b["ts"] + b["dur"]
                           for b in bodies)


def test_counters_are_shares_of_time_and_few(line):
    counters = {}
    for e in json.loads(line.chrome_json())["traceEvents"]:
        if e["ph"] == "C":
            counters.setdefault((e["pid"], e["name"]), []).append((e["ts"], e["args"]["value"]))
    names = {name for _, name in counters}
    assert {"matrix workers busy %", "egress used %", "ingress used %", "memory used %"} <= names
    for values in counters.values():
        assert len(values) <= BINS + 1 and all(0 <= v <= 103 for _, v in values) and values[-1][1] == 0
    busy = counters[0, "matrix workers busy %"]
    mean = sum(v * (b - a) for (a, v), (b, _) in zip(busy, busy[1:], strict=False)) / line.span
    assert mean == pytest.approx(100 * line.utilisation()[0, :NPU.num_aic].mean(), abs=1)
