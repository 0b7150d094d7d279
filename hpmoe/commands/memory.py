"""hpmoe memory: prints the memory of each save policy, as planned and as measured, beside MindSpore op by op."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import mindspore as ms
from absl import flags

import hpmoe
from hpmoe.commands import demo, layer_flags, options
from hpmoe.commands.op_by_op import moe_ffn_op_by_op
from hpmoe.commands.options import Options
from hpmoe.kernels.host_launch import POOL
from hpmoe.ranks.starting import PR_SET_PDEATHSIG
from hpmoe.routing.workload import layer_inputs
from hpmoe.support.cached_files import Fields
from hpmoe.support.host import forget_peak, status_kib
from hpmoe.support.progress import Progress
from hpmoe.support.trees import Function, PyTree
from hpmoe.tiling.memory_use import MIB, MemoryReport
from hpmoe.transforms.save_for_backward import POLICIES

SUMMARY = "prints the memory of each save policy, planned and measured, beside MindSpore op by op"
NOTES = """\
  hpmoe memory --tokens=512 --policy=dispatched_rows
Every row is a process of its own. All numbers are MiB of all ranks, without the inputs: saved between the passes, the
temporaries of each pass, and the peak of a forward pass alone and of a forward and backward pass. The plan's peak is
computed from its buffers and the rows received; the pool's is counted by the allocator of the kernels' buffers; the
process's is the growth of its resident memory (VmHWM), with what MindSpore and the matmuls take. With
--rank_capacity_factor the plan has all rows that a rank can hold, as on an NPU, and not those received."""

OP_BY_OP = "op by op"
COLUMNS = {"saved": ("saved",), "temporaries": ("forward", "backward"), "plan": demo.PASSES, "pool": demo.PASSES,
           "process": demo.PASSES}


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "policy", "all", "which policy", (*POLICIES, "all"))
    options.define_limit(values)
    layer_flags.define_layer(values, ep=1, tokens=2048, hidden=1024, intermediate=512, experts=16, top_k=4)


def run(o: flags.FlagValues) -> int:
    options.check_sizes(o)
    options.check_limit(o)
    sides = [*(POLICIES if o.policy == "all" else [o.policy]), OP_BY_OP]
    asked = {**options.sizes(o), "dtype": o.dtype, "seed": o.seed, "rank_capacity_factor": o.rank_capacity_factor}
    with Progress("hpmoe memory") as progress:
        rows = {}
        for side in sides:
            progress(side)
            rows[side] = in_process({**asked, "side": side})
    return options.report(o, {"sizes": asked, "mib": rows}, "\n".join(report_lines(asked, rows)))


def in_process(asked: Fields) -> Fields:
    """Returns the result of `measured` in a process of its own."""
    ends_with_parent = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGKILL:d})"
    code = f"{ends_with_parent}; import sys; from hpmoe.commands import memory; memory.answer(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(asked)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"the process of {asked['side']} ended with {done.returncode}: {done.stderr[-2000:].strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(asked: str) -> None:
    """Prints what a side takes; the body of its process."""
    try:
        print(json.dumps(measured(SimpleNamespace(**json.loads(asked)))))
    except (ValueError, MemoryError) as error:  # sizes that cannot be had are no fault of the code that asked
        sys.exit(str(error) or "not enough memory")


def measured(o: Options) -> Fields:
    """Returns MiB of one side, by column and part; op by op lacks parts that it has no plan for."""
    ms.runtime.launch_blocking()
    few = {"ep": o.ep, "tokens": 2, "hidden": 8, "intermediate": 4, "experts": o.ep, "top_k": 1}
    small = SimpleNamespace(**{**vars(o), **few, "rank_capacity_factor": None})
    for call in calls(side_of(small), small)[1].values():
        call()  # libraries are loaded, threads are started
    f = side_of(o)
    args, passes = calls(f, o)
    known = args if o.rank_capacity_factor is None else map(hpmoe.ShapeDtypeStruct, args)
    out: Fields = {} if o.side == OP_BY_OP else planned(f.memory(*known))
    gc.collect()
    base, out["pool"], out["process"] = status_kib("VmRSS"), {}, {}
    for name, call in passes.items():
        forget_peak()
        result = call()
        out["pool"][name], out["process"][name] = POOL.peak_bytes / MIB, (status_kib("VmHWM") - base) / 1024
        del result
    if o.side == OP_BY_OP:
        del out["pool"]
    return out


def side_of(o: Options) -> Function:
    if o.side == OP_BY_OP:
        return moe_ffn_op_by_op
    kept = hpmoe.save_for_backward(hpmoe.moe_ffn, policy=o.side)
    if o.rank_capacity_factor is not None:
        kept = hpmoe.limit_rows(kept, rank_capacity_factor=o.rank_capacity_factor)
    staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)(kept)
    return hpmoe.spmd(staged, hpmoe.Mesh(o.ep))


def calls(f: Function, o: Options) -> tuple[tuple[ms.Tensor, ...], dict[str, Callable[[], PyTree]]]:
    """Returns arguments of these sizes, and the passes on them."""
    args, cotangent = layer_inputs(o)
    return args, demo.passes(f, args, cotangent)


def planned(report: MemoryReport) -> Fields:
    alone = report.inference.outputs + report.inference.temporaries
    peaks = dict(zip(demo.PASSES, (alone, report.training_peak), strict=True))
    return {"saved": {"saved": report.saved / MIB}, "plan": {name: n / MIB for name, n in peaks.items()},
            "temporaries": {"forward": report.forward.temporaries / MIB, "backward": report.backward.temporaries / MIB}}


def report_lines(asked: Fields, rows: dict[str, Fields]) -> list[str]:
    """Returns the lines of the table for a terminal."""
    size = "rank" if asked["ep"] == 1 else "ranks"
    lines = [f"MoE-FFN on {asked['ep']} {size}: {asked['tokens']} tokens a rank, hidden {asked['hidden']}, intermediate "
             f"{asked['intermediate']}, {asked['experts']} experts, top {asked['top_k']}, {asked['dtype']}; MiB", "",
             f"{'':<18}{'saved':>8}{'temporaries':>19}{'peak: plan':>19}{'pool':>19}{'process':>19}",
             f"{'':<26}" + f"{'forward':>10}{'backward':>9}" + f"{'forward':>10}{'and back':>9}" * 3]
    for side, row in rows.items():
        cells = [row.get(column, {}).get(part) for column, parts in COLUMNS.items() for part in parts]
        texts = ["-" if c is None else f"{c:.1f}" for c in cells]
        pairs = zip(texts[1::2], texts[2::2], strict=True)
        lines.append(f"{side:<18}{texts[0]:>8}" + "".join(f"{a:>10}{b:>9}" for a, b in pairs))
    return lines
