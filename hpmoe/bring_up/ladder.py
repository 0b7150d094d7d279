"""The ladder: the steps of a first day on an NPU in order; each says what it found, or why it failed and where to look."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpmoe.bring_up import basics, bodies, layers, router_bodies
from hpmoe.bring_up.device import CheckFailed, Device
from hpmoe.support.errors import ArgumentError, LaunchError


class Step(NamedTuple):
    """A check, where to look if it fails, and how many ranks it needs."""

    check: Callable[[Device], str]
    look_at: str
    ranks: int = 1


FRACTALS = "fractals and pads in cube_2201.h or cube_3510.h; `kDirectionAlign` for float32; Fixpipe for odd columns"
BODY = "the instruction of the named function in its header of kernels/ascendc"
LADDER: dict[str, Step] = {
    "build": Step(basics.built, "hpmoe build --target=ascend --bodies=moe_ffn, then --kernel-type=macro; hpmoe doctor"),
    "one core": Step(basics.one_launch, "a hang: kSorted below 2 says that AIV did not start, build with "
                     "--kernel-type=macro; wrong numbers: the layout of LaunchArgs, addresses of tensors"),
    "counters": Step(bodies.launches, "DMA additions to a counter, and the invalidation of its line (counters.h)"),
    "one put": Step(basics.one_put, "put and put_back in transfer_body.h; PIPE_ALL before their signals (worker.h)"),
    "reachability": Step(basics.reachability, "the error names two ranks: hccn_tool and npu-smi topo; aclshmem 1.1", 2),
    "clock": Step(layers.lost_signal, "kCyclesPerUs in chip.h against 50 MHz on A2 and A3, 1 GHz on a 950; kFailed"),
    "products with a unit matrix": Step(bodies.identity_products, f"addresses; {FRACTALS}"),
    "float32 products": Step(bodies.float32_products, "an error of 2.4e-04 says that HF32 is on (cube_unit.h)"),
    "ragged products": Step(bodies.ragged_products, FRACTALS),
    "weight gradients": Step(bodies.weight_gradients, "sums over rows that are no whole fractals; squares of float32"),
    "a layer on one rank": Step(layers.one_rank, "the prologue: gather_sort.h, placement.h, targets.h"),
    "ids of no expert": Step(layers.bad_ids, "the status block, and the restart of counters (bound_kernel.cc)"),
    "rows between ranks": Step(layers.rows_of_ranks, "routing tables that other ranks write (prologue.h), aclshmem_ptr", 2),
    "many launches": Step(layers.many_launches, "the order of rows and signals, remote atomic additions, tables of even "
                          "and odd launches", 2),
    "gradients on all ranks": Step(layers.all_ranks, "a hang: a block without a core; wrong numbers: the named argument", 2),
    "functions": Step(bodies.functions, BODY),
    "gathers": Step(bodies.gathers, "scalar reads of indices, and rows longer than a buffer (transfer_body.h)"),
    "overflow": Step(bodies.overflow, "SetSaturationFlag in kernel.cpp"),
    "what routers are made of": Step(router_bodies.routers, f"Sort32, MrgSort, Gather, CTRL[53]; {BODY}"),
    "guards": Step(router_bodies.guards, "bits of a comparison (guard_bodies.h)"),
    "int8": Step(router_bodies.int8, "fractals of 32, Fixpipe of int32, Cast (quantized_bodies.h)"),
    "capacity, dedup, copies": Step(layers.transformed, "heaviest.h, stop_sort.h, expert_copies.h", 2),
    "relays": Step(layers.relays, "stop_sort.h, task_segments.h", 4),
    "the same bits": Step(layers.same_bits, "an order of additions or of copies that was left to chance", 2),
    "timing": Step(basics.timing, "copies of the record and the status in the stream (bound_kernel.cc); msprof op"),
}


@dataclasses.dataclass(frozen=True)
class Rung:
    """A check that was done: its name, whether it passed (None if left out), what it says, where to look, and seconds."""

    name: str
    passed: bool | None
    says: str
    look_at: str
    seconds: float


def climb(device: Device, goes_on: bool, progress: Callable[[str], None]) -> Iterator[Rung]:
    """Runs the checks one by one; stops after a failure unless `goes_on`."""
    for number, (name, step) in enumerate(LADDER.items(), 1):
        progress(f"{number} of {len(LADDER)}: {name}")
        begin = time.monotonic()
        if device.most_ranks < step.ranks or (step.ranks == 4 and device.most_ranks % 2):
            says = f"left out: it needs {step.ranks} ranks; start it under msrun --worker_num={step.ranks}"
            yield Rung(name, None, says, "", 0.0)
            continue
        try:
            passed, says = True, step.check(device)
        except (CheckFailed, ArgumentError, LaunchError) as error:
            passed, says = False, f"{'' if isinstance(error, CheckFailed) else type(error).__name__ + ': '}{error}"
        yield Rung(name, passed, says, "" if passed else step.look_at, time.monotonic() - begin)
        if not passed and not goes_on:
            return
