"""Pictures and pages of runs: they stand alone, stay small, and say what is simulated."""

import json
import re
from html.parser import HTMLParser

import ablation
import pytest
from matplotlib.figure import Figure
from simulated_layers import NPU, plan
from small_timelines import handmade, two_task_flow

import hpmoe
from hpmoe.timelines.chrome import BINS, chrome_json
from hpmoe.timelines.html import html
from hpmoe.timelines.picture import colors_of
from hpmoe.timelines.run import op_name


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
    assert "a &lt;b&gt;" in text and "critical path, simulated" in text and ": measured " in text
    for words in ("aic busy", "exposed communication", "waiting for grouped_matmul", " | ".join(line.flow.provenance)):
        assert words in text
    assert len(line.html()) < 2_000_000


def test_an_operation_has_one_color_in_both_halves_of_a_page(line):
    """Also where one half has operations that the other lacks, and more of them than there are colors by hand."""
    other = hpmoe.simulate(plan(T=2048, H=1024, signal="peer", direction="backward"))
    halves = html([other, line]).split("<h2>")[1:3]
    colors = [dict(re.findall(r"background:(#\w+)'></i>([a-z_]+) -&gt;", half)[::-1]) for half in halves]
    colors = [{label: color for color, label in half.items()} for half in colors]
    assert len(colors[0]) > 5 and {"dispatch", "combine"} <= colors[0].keys() & colors[1].keys()
    for label in colors[0].keys() & colors[1].keys():
        assert colors[0][label] == colors[1][label]
    for run, half in zip((other, line), halves, strict=True):
        assert len(set(re.findall(r"background:(#\w+)", half.split("busy workers")[0]))) == len(run.flow.ops) + 1


def test_completion_flags_take_no_color_of_another_operation(line):
    """The half with signal="peer" has completion flags between a combine's puts and its sum."""
    other = hpmoe.simulate(plan(signal="peer"))
    mine, theirs = (dict(zip([op_name(run.flow, op) for op in run.flow.ops], colors, strict=True))
                    for run, colors in zip((line, other), colors_of(line, other), strict=True))
    assert mine.keys() < theirs.keys() and {name: theirs[name] for name in mine} == mine
    assert len(set(theirs.values())) == len(theirs)


def test_a_page_has_a_time_axis_and_names_its_units(line):
    measured = handmade(two_task_flow(2), (0, 1, 5), (2, 3, 9))
    text = html([line, measured])
    axes = re.findall(r"<div class='axis'>(.*?)</div>", text)
    assert len(axes) == 2 + 1 + measured.flow.ep_size + 1 and len(set(axes)) == 1  # a chart for each rank, and the curves
    ticks = re.findall(r"left:([\d.]+)%'>([^<]+)</b>", axes[0])
    assert ticks[0] == ("0.00", "0") and 3 <= len(ticks) <= 9
    assert all(label.endswith((" us", " ms")) for _, label in ticks[1:])
    place, label = ticks[-1]
    us = float(label.split()[0]) * (1e3 if label.endswith("ms") else 1)
    assert float(place) / 100 == pytest.approx(us / line.span, abs=1e-3)
    assert f"AIC 0..{NPU.num_aic - 1}" in text and f"AIV 0..{NPU.num_aiv - 1}" in text and "worker 0" in text


def test_titles_of_pictures_are_inside_them(line, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self))
    hpmoe.simulate(plan(ep=4, T=256, signal="expert", direction="backward")).picture(tmp_path / "run.png")
    row = {"ep": 4, "imbalance": 1, "makespan_ms": 1.0}
    ablation.draw([row | {"variant": name} for name, _, _ in ablation.variants("forward")], tmp_path / "x.png", "forward")
    assert len(figures) == 2
    for figure in figures:
        figure.canvas.draw()
        for text in (figure._suptitle, *(ax.title for ax in figure.axes)):
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text.get_text()


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
