"""The report of a benchmark: rows, the ratio to the fastest peer, and all of it as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from contest import Contestant
from layer_problem import LIMITS, PASSES, LayerProblem
from matmul_alone import SIZE

from hpmoe.support.cached_files import Fields

WORDS = {"matmul": "a plain matmul", "read": "reading the weights"}


def summary(problem: LayerProblem, contestants: Sequence[Contestant]) -> Fields:
    """The part of a case's report that the contest decides."""
    amounts = {"matmul": 2 * SIZE ** 3 / 1e9, "read": problem.weight_bytes["forward"] / 1e9}
    rates = {c.name: amounts[which] / min(c.turns[which]) * 1e3 for c in contestants for which in LIMITS
             if c.milliseconds(which)}
    best = {which: max((rates[c.name] for c in contestants if c.name in rates and which in c.turns), default=None)
            for which in LIMITS}
    layers = [c for c in contestants if not c.side.ceiling]
    own = {p: next((c.milliseconds(p) for c in layers if c.name == "hpmoe"), None) for p in PASSES}
    limits = {p: nearer_limit(best, problem.flops[p] / 1e9, problem.weight_bytes[p] / 1e9) for p in PASSES}
    return {
        "matmul_gflops": best["matmul"], "read_gbytes": best["read"], "limits": limits,
        "sides": [row(c, problem.flops, own, limits) for c in layers],
        "ceilings": [{**who(c), "rate": rates.get(c.name), "unit": "GB/s" if "read" in c.turns else "GFLOP/s"}
                     for c in contestants if c.side.ceiling],
        "fastest_peer": {p: fastest(layers, p, own[p]) for p in PASSES},
    }


def nearer_limit(best: Mapping[str, float | None], gflop: float, gbytes: float) -> Fields | None:
    """The limit that takes longest, and its milliseconds: the products at the best rate, or the weights; None if unknown."""
    took = {which: amount / rate * 1e3 for which, amount in zip(LIMITS, (gflop, gbytes), strict=True)
            if (rate := best[which])}
    which = max(took, key=took.__getitem__, default=None)
    return {"limit": which, "ms": took[which]} if which else None


def row(c: Contestant, flops: dict[str, int], own: dict[str, float | None], limits: Mapping[str, Fields | None]) -> Fields:
    """One side of one case."""
    passes = {}
    for which, turns in c.turns.items():
        if (median := c.milliseconds(which)) is None:
            continue
        ours, limit = own[which], limits[which]
        passes[which] = {
            "ms": median, "min_ms": min(turns), "max_ms": max(turns), "quartiles_ms": quartiles(turns), "turns_ms": turns,
            "times_hpmoe": median / ours if ours else None, "gflops": flops[which] / median / 1e6,
            "of_limit": limit["ms"] / median if limit else None, "peak_mib": c.peak_mib[which], "errors": c.errors[which]}
    return {**who(c), "passes": passes}


def who(c: Contestant) -> dict[str, str]:
    return {"side": c.name, "title": c.side.title, "variant": c.variant, "status": c.status, "note": c.note}


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third.

    Example:
        >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
        [2.0, 4.0]
    """
    if len(values) < 2:
        return [values[0], values[0]]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def fastest(layers: Sequence[Contestant], which: str, own: float | None) -> Fields | None:
    """The fastest peer at a pass and how many times longer than hpmoe it takes; None where there is no peer."""
    times = {c.name: (ms, c.side.title) for c in layers if c.name != "hpmoe" and (ms := c.milliseconds(which))}
    if not times:
        return None
    name = min(times, key=times.__getitem__)
    ms, title = times[name]
    return {"side": name, "title": title, "ms": ms, "times_hpmoe": ms / own if own else None}


def case_lines(case: Fields) -> list[str]:
    """A case for a terminal."""
    s = case["sizes"]
    lines = [f"== {case['name']}, {case['dtype']}: {s['ep']} rank{'s' * (s['ep'] > 1)}, hidden {s['hidden']}, intermediate "
             f"{s['intermediate']}, {s['experts']} experts, top {s['top_k']}, {case['routing']} routing "
             f"(largest load {case['max_over_mean_load']:.2f} of the mean)"]
    for which in PASSES:
        lines += ["", f"{which:<20}{'ms':>10}{'[min .. max]':>20}{'/ hpmoe':>10}{'GFLOP/s':>10}{'limit':>9}"
                  f"{'peak MiB':>10}{'error':>10}"]
        lines += [pass_line(r["title"], r["passes"][which]) for r in case["sides"] if which in r["passes"]]
    lines += ["", *(problem_line(r) for r in (*case["sides"], *case["ceilings"]) if r["status"] != "ok")]
    lines += [f"  {m['title']}{' (' + m['variant'] + ')' if m['variant'] else ''}: {m['rate']:.0f} {m['unit']}"
              for m in case["ceilings"] if m["rate"]]
    lines += [f"  {which}: the nearer limit is {WORDS[limit['limit']]}, {digits(limit['ms'])} ms"
              for which, limit in case["limits"].items() if limit]
    lines += [f"  {r['title']} chose {r['variant']}" for r in case["sides"] if r["variant"] and r["passes"]]
    lines += [f"  {which}: the fastest peer, {f['title']}, takes {f['times_hpmoe']:.2f} times as long as hpmoe"
              for which, f in case["fastest_peer"].items() if f and f["times_hpmoe"]]
    return [*lines, ""]


def overview(cases: Sequence[Fields]) -> list[str]:
    """A row for each case and pass, in Markdown."""
    lines = ["| case | dtype | pass | hpmoe | fastest peer | its time | ratio | nearer limit | share | peak |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for case in cases:
        own = next(r["passes"] for r in case["sides"] if r["side"] == "hpmoe")
        for which in PASSES:
            f, p = case["fastest_peer"][which], own.get(which)
            peer = [f["title"], f"{digits(f['ms'])} ms"] if f else ["-", "-"]
            ratio = f"{f['times_hpmoe']:.2f}x" if f and p else "-"
            limit = case["limits"][which]
            share = [WORDS[limit["limit"]], f"{p['of_limit']:.0%}"] if p and limit else ["-", "-"]
            mine = [f"{digits(p['ms'])} ms"] if p else ["-"]
            memory = f"{p['peak_mib']:.0f} MiB" if p else "-"
            lines.append("| " + " | ".join([case["name"], case["dtype"], which, *mine, *peer, ratio, *share, memory]) + " |")
    return lines


def pass_line(title: str, p: Fields) -> str:
    def shown(value: float | None, text: str) -> str:
        return "-" if value is None else text.format(value)

    spread = f"[{digits(p['min_ms'])} .. {digits(p['max_ms'])}]"
    return (f"  {title:<18}{digits(p['ms']):>10}{spread:>20}{shown(p['times_hpmoe'], '{:.2f}x'):>10}{p['gflops']:>10.0f}"
            f"{shown(p['of_limit'], '{:.0%}'):>9}{p['peak_mib']:>10.0f}{max(p['errors'].values()):>10.1e}")


def digits(ms: float) -> str:
    """Three digits.

    Example:
        >>> digits(0.12345), digits(12.345), digits(1234.5)
        ('0.123', '12.3', '1234')
    """
    return f"{ms:.{max(0, 2 - math.floor(math.log10(ms)))}f}" if ms > 0 else "0"


def problem_line(r: Fields) -> str:
    words = {"none": "-", "not installed": "not installed", "wrong": "WRONG", "failed": "FAILED"}
    return f"  {r['title']}: {words[r['status']]}: {r['note']}"


def closing_lines(report: Fields) -> list[str]:
    """The machine, and where there are several cases the table of them all."""
    m = report["machine"]
    lines = [*overview(report["cases"]), ""] if len(report["cases"]) > 1 else []
    lines += [f"on {m['cpu']}, {m['cores']} cores; hpmoe multiplies with {m['hpmoe_gemm']}; "
              f"medians of {report['repeats']} turns",
             ", ".join(f"{name} {version}" for name, version in m["versions"].items())]
    if not report["ok"]:
        lines += ["FAILED: a side computes something else, ended or hung"]
    return lines
