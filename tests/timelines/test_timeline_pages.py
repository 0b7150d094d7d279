"""Pictures and pages of runs: they stand alone, stay small, and say what is simulated."""

import json
import re
from html.parser import HTMLParser

import ablation
import numpy as np
import pytest
from matplotlib.figure import Figure
from simulated_layers import NPU, plan
from small_timelines import handmade, two_task_flow

import hpmoe
from hpmoe.timelines.chrome import BINS, chrome_json
from hpmoe.timelines.html import html
from hpmoe.timelines.kinds import KINDS, NOTHING, kind_of, kinds_in


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


VIEWS = [kind for kind in KINDS if kind is not NOTHING]


def test_a_kind_of_work_has_one_colour_in_every_view(line):
    """Forward and backward together have all kinds."""
    back = hpmoe.simulate(plan(T=2048, H=1024, signal="peer", direction="backward"))
    seen = {kind for run in (line, back) for kind in kinds_in(run.flow)}
    assert {kind.name for kind in seen} == {kind.name for kind in VIEWS}
    page = html([back, line])
    shown = dict(re.findall(r"<i style='background:(#\w+)'></i>([^<]+)", page))
    assert {name: color for color, name in shown.items()} == {kind.name: kind.color for kind in VIEWS}
    assert set(re.findall(r"fill='(#\w+)'", page)) <= set(shown)
    for run in (line, back):
        kinds = {kind.name: kind for kind in kinds_in(run.flow)}
        for event in json.loads(run.chrome_json())["traceEvents"]:
            if event["ph"] == "X":
                kind = kinds[event["args"].get("kind", "waiting")]
                assert event["cname"] == kind.trace_color
        assert run.text().splitlines()[-1].split() == " ".join(f"{k.letter} {k.name}" for k in kinds.values()).split()


def test_kinds_follow_the_meaning_of_an_operation(line):
    back = hpmoe.simulate(plan(direction="backward"))
    names = {(op.opcode, op.label): kind_of(op).name for run in (line, back) for op in run.flow.ops}
    assert names["PUT", "dispatch"] == names["PUT", "dispatch_weights"] == "dispatch"
    assert names["GMM", "grouped_matmul"] == "matrix products"
    assert names["PUT_BACK", "combine"] == names["REDUCE", "combine"] == names["KEEP", "combine_weights"] == "combine"
    assert names["WGRAD", "grouped_weight_grad"] == names["SWIGLU_GRAD", "swiglu_grad"] == "gradients"


def test_colours_differ_for_people_who_see_no_red_or_green():
    """Viénot, Brettel and Mollon 1999: protanopia and deuteranopia, in linear RGB; distances as in CIE 1976."""
    seen = {"all": np.eye(3), "no red": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
            "no green": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])}
    linear = np.array([[int(kind.color[i:i + 2], 16) / 255 for i in (1, 3, 5)] for kind in KINDS]) ** 2.2
    for matrix in seen.values():
        places = lab(np.clip(linear @ matrix.T, 0, 1))
        apart = np.linalg.norm(places[:, None] - places, axis=-1)[~np.eye(len(KINDS), dtype=bool)]
        assert apart.min() > 12


def lab(linear):
    xyz = linear @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856)).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def test_a_page_shows_rank_0_side_by_side_and_folds_others(line):
    text = html([line, line], ["a", "b"])
    sides, details = text.split("<div class='sides'>")[1].split("<h2>a</h2>")
    assert sides.count("<h3>") == 2 and sides.count("AIC 0..") == 2
    assert details.count("<details><summary>rank 1</summary>") == 2
    assert f"waiting, summed over {2 * (NPU.num_aic + NPU.num_aiv)} workers" in text


def test_a_notebook_shows_rank_0_of_a_timeline(line):
    page = Balanced()
    page.feed(line._repr_html_())
    assert page.open == [] and "script" not in page.tags
    assert "summed over" in line._repr_html_() and line._repr_html_().count("<div class='axis'>") == 1


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


def test_arrows_lead_from_signals_to_waiting_tasks_up_to_a_limit(line):
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
