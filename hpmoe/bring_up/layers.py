"""Checks of whole layers: on one rank, then on two and on all, with what the kernel itself finds in the ids."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, mint

import hpmoe
from hpmoe.bring_up.device import Arrays, CheckFailed, Device, random
from hpmoe.kernels.image import unpack_image
from hpmoe.runtime.targets import find_target
from hpmoe.support.errors import LaunchError
from hpmoe.support.trees import Function

LAUNCHES, SMALL_LAUNCHES = 10_000, 60
WAIT = 1.0  # seconds that a task waits for a signal that does not come
MOST_WAITS = 8  # in which a launch ends that has lost a signal


def layer_inputs(ranks: int, tokens: int = 7, hidden: int = 32, intermediate: int = 16, experts: int = 2, top_k: int = 2,
                 dtype: str = "bfloat16", hot: bool = False, seed: int = 0) -> list[Arrays]:
    """Returns the arguments of moe_ffn for each rank; if `hot`, one expert is among the choices of every token."""
    rng = np.random.default_rng(seed)
    ids = rng.random((ranks, tokens, experts)).argsort(-1)
    if hot:
        ids = np.stack([[np.r_[1, row[row != 1]] for row in of_rank] for of_rank in ids])
    local = experts // ranks
    return [[random(rng, tokens, hidden, dtype=dtype), np.ascontiguousarray(of_rank[:, :top_k]).astype(np.int32),
             random(rng, tokens, top_k, dtype="float32"), random(rng, local, hidden, 2 * intermediate, dtype=dtype),
             random(rng, local, intermediate, hidden, dtype=dtype)] for of_rank in ids]


def one_rank(device: Device) -> str:
    """A layer forward and backward in three dtypes."""
    worst = max(device.compare(hpmoe.moe_ffn, layer_inputs(1, dtype=dtype), grads=True)
                for dtype in ("bfloat16", "float16", "float32"))
    return f"forward and backward in three dtypes, error at most {worst:.1e}"


def bad_ids(device: Device) -> str:
    """An id of no expert is found by the kernel and named by the host; the launch after it is right."""
    kernel, inputs = device.bind(hpmoe.moe_ffn), layer_inputs(1)
    want = device.split(kernel(*device.tensors(inputs)), 1)[0]
    wrong = [np.where(np.arange(7)[:, None] == 3, 9, a) if a.dtype == np.int32 else a for a in inputs[0]]
    try:
        kernel(*device.tensors([[a.astype(np.int32) if a.dtype == np.int64 else a for a in wrong]]))
        hpmoe.ranks.synchronize()
    except (LaunchError, hpmoe.ArgumentError) as error:
        said = str(error)
    else:
        raise CheckFailed("an id of 9 among 2 experts was taken without an error")
    if not re.search(r"\b9\b", said):
        raise CheckFailed(f"the error does not name the id: {said}")
    if not np.array_equal(device.split(kernel(*device.tensors(inputs)), 1)[0], want):
        raise CheckFailed("the launch after the failed one gives other numbers")
    return "named, and the next launch is right"


def moved(x: Tensor, ids: Tensor) -> Tensor:
    """Sends rows of tokens to the ranks of their experts, two a rank, and back."""
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
    return hpmoe.combine(rows, route)


def _to_one_expert_each(ranks: int, tokens: int, seed: int, hot: bool) -> list[Arrays]:
    return [mine[:2] for mine in layer_inputs(ranks, tokens, experts=2 * ranks, top_k=1, hot=hot, seed=seed)]


def rows_of_ranks(device: Device) -> str:
    """Dispatch and combine alone, all tokens to one expert and then random ones: rows are copied, so every bit is known."""
    ranks = device.num_ranks
    for seed, hot in ((0, True), (1, False)):
        device.compare(moved, _to_one_expert_each(ranks, 40, seed, hot), exact=True)
    return f"{ranks} ranks, to one expert and to all, bit for bit"


def many_launches(device: Device) -> str:
    """Rows of changing routings, again and again: nothing is lost, late or of another launch."""
    ranks = device.num_ranks
    count = SMALL_LAUNCHES if device.is_small else LAUNCHES

    kernel = device.bind(lambda x, ids: moved(x * 2.0, ids), ranks)
    for seed in range(count):
        inputs = _to_one_expert_each(ranks, 24, seed, hot=seed % 7 == 0)
        got = device.split(kernel(*device.tensors(inputs)), ranks)
        for rank, found in zip(device.mine(ranks), got, strict=True):
            if not np.array_equal(found, inputs[rank][0].astype(np.float32) * 2):
                raise CheckFailed(f"launch {seed} gave other rows on rank {rank}")
    hpmoe.ranks.synchronize()
    return f"{count} launches, {ranks} ranks, every row right"


def lost_signal(device: Device) -> str:
    """An image without the signals of one kind of task: the launch ends, names task and event, and the next one is right."""
    stage = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(lambda x, w: mint.tanh(x @ w), rows=16, cols=32)),
                                machine=device.machine.replace(num_aic=1, num_aiv=2))
    x, w = (np.ones((16, 16), np.float32) for _ in range(2))
    kernel = find_target(device.target).compile([stage.lower(*device.tensors([[x, w]]))], WAIT)
    begin = time.monotonic()
    image = kernel.image.copy()
    unpack_image(image)[1]["templates"]["num_signals"] = 0
    try:
        device.run(kernel.replace(image=image), [x, w])
    except LaunchError as error:
        said = str(error)
    else:
        raise CheckFailed("a task that nobody signalled to ran all the same")
    took = time.monotonic() - begin
    if not device.is_small and not WAIT / 2 < took < MOST_WAITS * WAIT:
        raise CheckFailed(f"a timeout of {WAIT:g} s ended after {took:.3g} s; the system counter has another rate")
    if "waited too long" not in said:
        raise CheckFailed(f"the launch ended for another reason: {said}")
    if not np.array_equal(device.run(kernel, [x, w])[0], np.ones((16, 16))):
        raise CheckFailed("the launch after the lost one gives other numbers")
    return f"ends after {WAIT:g} s: {said.splitlines()[0]}"


def transformed(device: Device) -> str:
    """Capacity under each policy, tokens sent once, and copies of experts: what each does to the prologue and the bodies."""
    ranks, worst = device.num_ranks, 0.0
    capped = [lambda *args, policy=policy: hpmoe.moe_ffn(*args, capacity_factor=0.75, drop_policy=policy)
              for policy in ("position", "probs")]
    variants: Sequence[tuple[Function, Function | None]] = [
        *((f, None) for f in capped), (hpmoe.moe_ffn, hpmoe.send_rows(scheme="deduplicated")),
        (hpmoe.moe_ffn, hpmoe.replicate_experts(loads=[9, *[1] * (2 * ranks - 1)], replicas=1))]
    inputs = layer_inputs(ranks, tokens=24, experts=2 * ranks, hot=True)
    for f, before in variants:
        worst = max(worst, device.compare(f, inputs, grads=True, before=before))
    return f"two drop policies, deduplicated rows, replicas: error at most {worst:.1e}"


def relays(device: Device) -> str:
    """Rows that cross to a node once, and are passed on and added up there, alone and with tokens sent to a
    rank once."""
    ranks, worst = device.most_ranks, 0.0
    inputs = layer_inputs(ranks, tokens=24, experts=2 * ranks, top_k=3, hot=True)
    for before in (hpmoe.send_rows(scheme="hierarchical"), hpmoe.send_rows(scheme="hierarchical+deduplicated")):
        worst = max(worst, device.compare(hpmoe.moe_ffn, inputs, grads=True, before=before, nodes=2))
    return (f"two nodes of {ranks // 2} ranks, hierarchical, and hierarchical+deduplicated: "
            f"error at most {worst:.1e}")


def all_ranks(device: Device) -> str:
    """A layer of several blocks on all ranks, forward and backward; on an NPU also of the size of a real one."""
    ranks = device.num_ranks
    sizes = [(40, 64, 48, 4 * ranks)]
    if not device.is_small:
        sizes.append((512, 7168, 2048, 8 * ranks))
    worst = max(device.compare(hpmoe.moe_ffn, layer_inputs(ranks, *size), grads=True, blocks=device.machine.num_aic)
                for size in sizes)
    return f"{ranks} ranks of {device.machine.num_aic} blocks, {len(sizes)} sizes, error at most {worst:.1e}"


def same_bits(device: Device) -> str:
    """Runs a layer several times and compares the bits."""
    ranks = device.num_ranks
    kernel, tensors = device.bind(hpmoe.moe_ffn, ranks), device.tensors(layer_inputs(ranks, tokens=40, experts=2 * ranks))
    first, *others = (device.split(kernel(*tensors), ranks) for _ in range(5))
    if any(not np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True)):
        raise CheckFailed("the same call gave other numbers")
    return f"{ranks} ranks, five times"
