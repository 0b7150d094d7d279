"""hpmoe demo --processes: the layer of the demo with a process for each rank, and what each of them did."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from absl import flags

from hpmoe.commands import options
from hpmoe.ranks.starting import start_ranks
from hpmoe.support import host
from hpmoe.support.cached_files import Fields

COLUMNS = ("ms", "computing_ms", "moving_ms", "waiting_ms")


def measured(o: flags.FlagValues, tolerance: float) -> Fields:
    """Returns the ranks' findings; `status` is not 0 if a rank failed. Writes the timeline if one is requested."""
    with tempfile.TemporaryDirectory(prefix="hpmoe_demo_") as folder:
        given = {**options.sizes(o), "dtype": o.dtype, "seed": o.seed, "repeats": o.repeats, "folder": folder}
        status = start_ranks([sys.executable, "-m", "hpmoe.commands.demo_rank", json.dumps(given)], o.processes)
        if status != 0:
            return {"ok": False, "status": status}
        found = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        if o.out is not None:
            Path(o.out).write_bytes((Path(folder) / "timeline.json").read_bytes())
    is_right = all(error <= tolerance for error in found["errors"].values())
    return {"ok": is_right and found["same_as_virtual"], "status": 0, "sizes": {**options.sizes(o), "dtype": o.dtype},
            "machine": {"cpu": host.cpu_name(), "cores": host.num_cores()}, **found, "tolerance": tolerance,
            "repeats": o.repeats, "timeline": o.out}


def report_lines(r: Fields) -> list[str]:
    """Returns the report for a terminal."""
    if r["status"]:
        return [f"hpmoe demo: a rank ended with status {r['status']}"]
    size, machine, ranks = r["sizes"], r["machine"], r["ranks"]
    lines = [f"MoE-FFN on {len(ranks)} processes, a rank each: {size['tokens']} tokens a rank, hidden {size['hidden']}, "
             f"intermediate {size['intermediate']},", f"{size['experts']} experts, top {size['top_k']}, {size['dtype']}; "
             f"on {machine['cpu']}, {machine['cores']} cores"]
    if len(ranks) > machine["cores"]:
        lines += [f"{len(ranks)} processes take turns on {machine['cores']} cores: times include what a rank spends "
                  "without one."]
    for direction in r["schedule"]:
        lines += ["", f"{direction:<11}{'process':>9} {'cores':<8}{'rows':>7}{'sent MiB':>10}"
                  f"{'ms':>9}{'computing':>11}{'copying':>9}{'waiting':>9}"]
        lines += [_row(rank, rank[direction]) for rank in ranks]
    lines += ["", *r["waits"].splitlines(), "", f"{'error against MindSpore':<24}{'max|a-b| / max|b|':>20}   limit "
              f"{r['tolerance']:.0e}"]
    lines += [f"  {name if name == 'output' else 'd ' + name:<22}{e:>20.1e}   {'ok' if e <= r['tolerance'] else 'TOO LARGE'}"
              for name, e in r["errors"].items()]
    lines += [f"bit for bit what virtual ranks give: {'yes' if r['same_as_virtual'] else 'NO'}", "",
              *(f"{which}, median of {r['repeats']}: {ms:.1f} ms" for which, ms in r["latency_ms"].items()),
              f"timeline of all ranks: {r['timeline'] or '--out=FILE writes it'} (open in ui.perfetto.dev)"]
    return lines if r["ok"] else [*lines, "", "FAILED: see above"]


def _row(rank: Fields, did: Fields) -> str:
    cores = ",".join(map(str, rank["cores"]))
    ms, computing, moving, waiting = (did[name] for name in COLUMNS)
    return (f"  rank {rank['rank']:<4}{rank['process']:>9} {cores if len(cores) < 8 else str(len(rank['cores'])):<8}"
            f"{rank['rows']:>7}{did['sent_bytes'] / 2**20:>10.1f}{ms:>9.1f}{computing:>11.1f}{moving:>9.1f}{waiting:>9.1f}")
