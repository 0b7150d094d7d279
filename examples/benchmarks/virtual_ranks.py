"""virtual_ranks.py: the MoE-FFN with a process for each rank, beside the same ranks in one process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import script
from absl import flags

import hpmoe
from hpmoe.commands import options
from hpmoe.ranks.starting import start_ranks
from hpmoe.support.cached_files import Fields

SUMMARY = "times a MoE-FFN with a process for each rank, beside the same virtual ranks in one process"
NOTES = """\
  python examples/benchmarks/virtual_ranks.py --processes=2 --tokens=256
Both sides compute forward on all cores, in turns. "processor" is the time of all threads of all ranks, user and system,
which other programs on a shared machine lengthen little. Milliseconds, medians of the calls and of the turns."""
CALLS, WARM_UPS = 40, 5
SIZES = ("processes", "tokens", "hidden", "intermediate", "experts", "top_k")


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "processes", 2, "ranks")
    for name, default, text in (("tokens", 256, "tokens of each rank"), ("hidden", 1024, "hidden size"),
                                ("intermediate", 512, "intermediate size of an expert"),
                                ("experts", 16, "experts of all ranks"), ("top_k", 4, "experts of each token")):
        options.define_integer(values, name, default, text)
    script.define_dtypes(values)
    options.define_integer(values, "repeats", 3, "turns of each side")
    flags.DEFINE_string("measure", None, "a folder: measure in this process, or rank, and write the result there",
                        flag_values=values)


def run(o: flags.FlagValues) -> int:
    options.check_flag(o.experts % o.processes == 0, "experts", o.experts,
                       f"a multiple of {o.processes}, the number of ranks")
    if o.measure:
        return measure(o)
    report: Fields = {"machine": script.machine(), "cases": []}
    for dtype in script.DTYPES[o.dtype]:
        turns = [[turn(o, dtype, is_process) for is_process in (False, True)] for _ in range(o.repeats)]
        case: Fields = {"dtype": dtype}
        for name in ("wall", "processor"):
            virtual, processes = (statistics.median(t[side][name] for t in turns) for side in (0, 1))
            case[name] = {"virtual": virtual, "processes": processes, "ratio": processes / virtual}
            if not o.json:
                ratio = f"{processes / virtual:.2f}x"
                print(f"{dtype:<9} {name:<10} virtual {virtual:8.2f}  processes {processes:8.2f}  {ratio}", flush=True)
        report["cases"].append(case)
    return options.report(o, report, NOTES)


def turn(o: flags.FlagValues, dtype: str, is_process: bool) -> dict[str, float]:
    """Returns milliseconds of a call: of the slowest rank, and of the processor for all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [f"--{name}={getattr(o, name)}" for name in SIZES]
        command = [sys.executable, __file__, f"--measure={folder}", f"--dtype={dtype}", *sizes]
        status = start_ranks(command, o.processes) if is_process else subprocess.run(command, check=False).returncode
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    if status or len(found) != (o.processes if is_process else 1):
        raise options.UsageError(f"a rank ended with status {status}")
    return {"wall": max(f["wall"] for f in found), "processor": sum(f["processor"] for f in found)}


def measure(o: flags.FlagValues) -> int:
    """Times calls of this rank, or of all virtual ranks."""
    world = hpmoe.world()
    is_process = world.size > 1
    ranks, rng = o.processes, np.random.default_rng(0)
    ids = rng.random((ranks, o.tokens, o.experts)).argsort(-1)[..., :o.top_k].astype(np.int32)
    shapes = ((ranks, o.tokens, o.hidden), (ranks, o.tokens, o.top_k),
              (ranks, o.experts // ranks, o.hidden, 2 * o.intermediate),
              (ranks, o.experts // ranks, o.intermediate, o.hidden))
    x, *others = (ms.Tensor(array[world.rank] if is_process else array, getattr(ms, o.dtype))
                  for array in (rng.standard_normal(shape, np.float32) for shape in shapes))
    args = (x, ms.Tensor(ids[world.rank] if is_process else ids), *others)
    chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    layer = hpmoe.spmd(chain(hpmoe.moe_ffn), world if is_process else hpmoe.Mesh(o.processes))
    for _ in range(WARM_UPS):
        layer(*args)
    walls, processor = [], time.process_time()
    for _ in range(CALLS):
        began = time.perf_counter()
        layer(*args)
        walls.append(time.perf_counter() - began)
    processor = time.process_time() - processor
    found = {"wall": statistics.median(walls) * 1e3, "processor": processor / CALLS * 1e3}
    Path(o.measure, f"{world.rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(script.main(sys.modules[__name__]))
