"""permute.py --styles: one layer written in Megatron's style and with dispatch and combine, through the same transforms."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import mindspore as ms
import numpy as np
import script
from absl import flags
from mindspore import Tensor

import hpmoe
from hpmoe.commands import options
from hpmoe.routing.workload import layer_inputs
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import LaunchError
from hpmoe.support.known import known
from hpmoe.support.trees import Function, PyTree

SIZES = {"tokens": 2048, "hidden": 1024}  # where they are not given
PASSES = ("forward", "forward + backward")
NOTES = """\
Both sides run in this process and take turns, each the first in every other one: medians. Bytes are those that their
launches copied from rank to rank, counted as they were copied; tasks those of a rank. Results are equal to the last bit."""


def megatron(hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor, gate_up_weight: Tensor,
             down_weight: Tensor) -> Tensor:
    """moe_ffn as Megatron-LM and MindFormers write it: permute, exchange, grouped matmuls, exchange, unpermute."""
    permuted, sorted_indices = hpmoe.token_ops.permute(hidden_states, topk_ids)
    rows, route = hpmoe.token_ops.exchange(permuted, topk_ids, num_local_experts=gate_up_weight.shape[0])
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up_weight, route))
    out = hpmoe.token_ops.exchange_back(hpmoe.grouped_matmul(act, down_weight, route), route)
    return hpmoe.token_ops.unpermute(out, sorted_indices, topk_weights)


SIDES: dict[str, Function] = {"permute, exchange": megatron, "dispatch, combine": hpmoe.moe_ffn}


def define(values: flags.FlagValues) -> None:
    """The flags beside those of permute.py."""
    for name, default, text in (("ep", 4, "ranks"), ("intermediate", 512, "intermediate size of an expert"),
                                ("experts", 16, "experts of all ranks"), ("top_k", 4, "experts of each token")):
        options.define_integer(values, name, default, f"with --styles, {text}")
    options.define_integer(values, "seed", 0, "with --styles, seed of the random inputs", least=0)


def run(o: flags.FlagValues) -> int:
    sizes = {name: size or SIZES[name] for name, size in options.sizes(o).items()}
    options.check_sizes(SimpleNamespace(**sizes))
    report = {"machine": script.machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
    for dtype in script.DTYPES[o.dtype]:
        report["cases"].append(measured(sizes, dtype, o.seed, o.repeats))
        if not o.json:
            print("\n".join(lines(report["cases"][-1])), flush=True)
    return options.report(o, report, NOTES)


class Side:
    """One way to write the layer.

    Attributes:
        calls: what is timed of it, by pass.
    """

    def __init__(self, f: Function, ep: int, args: tuple[Tensor, ...], cotangent: Tensor):
        chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
        layer = hpmoe.spmd(chain(f), hpmoe.Mesh(ep))
        grad = cast(Function, ms.value_and_grad)(
            lambda *a: (layer(*a).astype(ms.float32) * cotangent).sum(), (0, 2, 3, 4))
        self.calls: dict[str, Callable[[], PyTree]] = {PASSES[0]: lambda: layer(*args), PASSES[1]: lambda: grad(*args)}

    def results(self) -> list[np.ndarray]:
        """The output and the gradients."""
        output, (_, grads) = (call() for call in self.calls.values())
        return [x.asnumpy() for x in (output, *grads)]

    def moved(self) -> Fields:
        """Bytes from rank to rank and tasks of a rank, of a forward and of a backward launch."""
        _, lines = hpmoe.measure(self.calls[PASSES[1]])
        return {"bytes": [int(known(line.moved).sum()) for line in lines], "tasks": [line.flow.num_tasks for line in lines]}


def measured(sizes: dict[str, int], dtype: str, seed: int, repeats: int) -> Fields:
    """Milliseconds, bytes and tasks of both sides; LaunchError where they differ in any bit of a result."""
    given = layer_inputs(SimpleNamespace(**sizes, dtype=dtype, seed=seed))
    sides = {name: Side(f, sizes["ep"], *given) for name, f in SIDES.items()}
    mine, theirs = (side.results() for side in sides.values())
    if not all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(mine, theirs, strict=True)):
        raise LaunchError(f"{' and '.join(SIDES)} compute different results")
    taken: dict[tuple[str, str], list[float]] = {(which, name): [] for which in PASSES for name in sides}
    for turn in range(2 * repeats):
        for which in PASSES:
            for name in list(sides)[::1 if turn % 2 else -1]:
                start = time.perf_counter()
                result = sides[name].calls[which]()
                taken[which, name].append(1e3 * (time.perf_counter() - start))
                del result
    passes = {which: {name: statistics.median(taken[which, name]) for name in sides} for which in PASSES}
    first, second = sides
    return {"sizes": sizes, "dtype": dtype, "ms": passes, "moved": {name: side.moved() for name, side in sides.items()},
            "ratio": {which: of[first] / of[second] for which, of in passes.items()}}


def lines(case: Fields) -> list[str]:
    """The text of a case."""
    size = case["sizes"]
    out = [f"{size['ep']} ranks x {size['tokens']} tokens, H={size['hidden']} I={size['intermediate']} E={size['experts']} "
           f"K={size['top_k']}, {case['dtype']}", f"  {'':30}" + "".join(f"{name:>20}" for name in SIDES) + f"{'ratio':>10}"]
    out += [f"  {which + ', ms':30}" + "".join(f"{of[name]:20.2f}" for name in SIDES) + f"{case['ratio'][which]:10.3f}"
            for which, of in case["ms"].items()]
    for what in ("bytes", "tasks"):
        for i, way in enumerate(("forward", "backward")):
            numbers = [case["moved"][name][what][i] for name in SIDES]
            texts = "".join(f"{n:20,}" for n in numbers)
            out.append(f"  {f'{what}, {way}':30}{texts}{numbers[0] / numbers[1]:10.3f}")
    return out
