"""Errors name the argument, what it was, what it must be and the user's line; their text is held here."""

import re

import numpy as np
import pytest
from bad_arguments import BAD_ARGUMENTS, BAD_IDS, BAD_LENGTHS, BAD_OPTIONS, BAD_ORDERS, MIXED, TILES, arguments
from helpers import Layer, fused, tensors
from mindspore import mint, ops

from hpmoe import (
    ArgumentError,
    Aval,
    Mesh,
    TraceError,
    TransformError,
    accumulate_grads,
    assign_queues,
    chain,
    cpu,
    fuse_persistent,
    moe_ffn,
    overlap_comm,
    spmd,
    tile_partition,
    verify,
)
from hpmoe.costs.task_costs import task_costs
from hpmoe.transforms.assign_queues import POLICIES

HERE = r"test_errors\.py:\d+"


def error_of(call, kind):
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


# Arguments of moe_ffn.

@pytest.mark.parametrize("name", BAD_ARGUMENTS)
@pytest.mark.parametrize("f", [tile_partition(moe_ffn), fused()(moe_ffn)], ids=["tiles", "fused"])
def test_argument_that_does_not_fit(name, f):
    position, change, words = BAD_ARGUMENTS[name]
    text = error_of(lambda: f(*arguments(position, change)), ArgumentError)
    assert words in text
    assert re.search(f"written at .*{HERE}", text)


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_argument_that_does_not_fit_a_plain_call(name):
    position, change, words = BAD_ARGUMENTS[name]
    text = error_of(lambda: moe_ffn(*arguments(position, change)), ArgumentError)
    argument = re.match(r"(\w+)", words)[0]
    assert re.match(rf"hpmoe\.\w+: {argument}", text) and " must be " in text


@pytest.mark.parametrize("name", BAD_IDS)
@pytest.mark.parametrize("f", [moe_ffn, tile_partition(moe_ffn), fused()(moe_ffn)], ids=["plain", "tiles", "fused"])
def test_ids_that_do_not_fit(name, f):
    change, words = BAD_IDS[name]
    assert re.match(rf"hpmoe\.dispatch: {words}", error_of(lambda: f(*arguments(1, change)), ArgumentError))


def test_ids_of_another_rank_are_named():
    layer = Layer(ep=2, T=4)
    args = layer.arguments()
    args[1][1, 2] = 3
    f = spmd(fused()(moe_ffn), Mesh(2))
    assert error_of(lambda: f(*tensors(args)), ArgumentError).startswith(
        "hpmoe.dispatch on rank 1: topk_ids[2] is [3, 3]; it must be distinct experts for each token.")


@pytest.mark.parametrize("dtype", ["float64"])
def test_tiles_compute_three_floats(dtype):
    floats = [Aval(s, dtype) for s in [(4, 4), (4, 2), (3, 4, 6), (3, 3, 4)]]
    avals = [floats[0], Aval((4, 2), "int32"), *floats[1:]]
    text = error_of(lambda: tile_partition(moe_ffn).lower(*avals), TransformError)
    assert text.startswith("tile_partition: equation ")
    assert text.splitlines()[0].endswith("tile tasks compute float32, bfloat16 and float16; write "
                                         ".astype(mindspore.float32) before the call")
    assert "\n  > " in text and re.search(f"written at .*{HERE}", text)


# spmd.


@pytest.mark.parametrize("name", BAD_LENGTHS)
def test_num_tokens_that_do_not_fit(name):
    lengths, words = BAD_LENGTHS[name]
    f, args = spmd(fused()(moe_ffn), Mesh(2)), tensors(Layer(ep=2, T=4).arguments())
    assert error_of(lambda: f(*args, num_tokens=lengths), ArgumentError) == f"spmd: {words}"


def test_leading_axis_is_the_ranks():
    args = tensors(Layer(ep=2, T=4).arguments())
    text = error_of(lambda: spmd(moe_ffn, Mesh(3))(*args), ArgumentError)
    assert text == ("spmd: hidden_states is of shape (2, 4, 4); it must be [3, ...], one part for each rank of the mesh. "
                    "An argument that all ranks share has None in in_axes.")


# Options of transforms, and their order.

@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_option_that_does_not_fit(name):
    call, words = BAD_OPTIONS[name]
    assert error_of(call, ArgumentError) == words


def test_unknown_target_lists_the_known_ones():
    text = error_of(lambda: fuse_persistent(assign_queues(TILES), target="tpu"), ArgumentError)
    assert text.startswith("fuse_persistent: target is 'tpu'; it must be one of ") and "cpu" in text


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_order_of_transforms(name):
    call, words = BAD_ORDERS[name]
    text = error_of(call, TransformError)
    assert text.startswith(words) and " at 0x" not in text


@pytest.mark.parametrize("call, words", [
    (lambda: accumulate_grads(moe_ffn), "accumulate_grads: missing a required argument: 'into'"),
    (lambda: accumulate_grads()(moe_ffn), "accumulate_grads: missing a required argument: 'into'"),
    (lambda: tile_partition(rows=64)(moe_ffn, row=64), "tile_partition: got an unexpected keyword argument 'row'"),
    (lambda: tile_partition(moe_ffn, 64), "tile_partition: too many positional arguments"),
])
def test_a_transform_called_otherwise_names_itself(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_unknown_option_names_the_transform():
    assert error_of(lambda: tile_partition(moe_ffn, row=3), TypeError).startswith("tile_partition: ")


# The user's own order and policy.

@pytest.mark.parametrize("order", [lambda r, n: [0] * n, lambda r, n: [0], lambda r, n: None,
                                   lambda r, n: list(range(1, n + 1))])
def test_user_order_must_be_a_permutation(order):
    f = spmd(overlap_comm(TILES, order=order), Mesh(2))
    text = error_of(lambda: f.lower(*tensors(Layer().arguments())), TransformError)
    assert text == f"overlap_comm: order(0, 2) is {order(0, 2)}; it must name each of the ranks 0..1 once"


def loses_one(flow, machine):
    return [np.arange(1, flow.num_tasks)]


def repeats_one(flow, machine):
    return [np.append(np.arange(flow.num_tasks), 0)]


def backwards(flow, machine):
    return [np.arange(flow.num_tasks)[::-1]]


def two_queues(flow, machine):
    return [np.arange(flow.num_tasks), np.zeros(0, int)]


def nothing(flow, machine):
    return None


def no_queues(flow, machine):
    return []


def costs_instead_of_tasks(flow, machine):
    return [task_costs(flow, machine)]


@pytest.mark.parametrize("policy, words", [
    (loses_one, "task t0 .* is in no queue; it must be in one queue, once"),
    (repeats_one, "task t0 .* is in worker.0 at 0, worker.0 at [0-9]+; it must be"),
    (backwards, "can never run: a cycle leads through what it waits for"), (two_queues, "there are 2 queues, cpu has 1"),
    (nothing, "'NoneType' object is not iterable"), (no_queues, "there are 0 queues, cpu has 1"),
    (costs_instead_of_tasks, "queue 0 is of float64; it must be of the numbers of tasks")])
def test_user_policy_must_be_a_schedule(policy, words):
    f = spmd(assign_queues(tile_partition(moe_ffn, rows=2, cols=3), policy=policy, machine=cpu(1)), Mesh(2))
    text = error_of(lambda: f.lower(*tensors(Layer().arguments())), TransformError)
    assert text.startswith(f"assign_queues: policy {policy.__name__} made no legal schedule: ") and re.search(words, text)


def test_a_policy_without_memory():
    """That is no fault of the policy, and what catches MemoryError around a call sees it."""
    def hungry(flow, machine):
        raise MemoryError("no memory")

    with pytest.raises(MemoryError, match="^assign_queues: policy hungry raised MemoryError: no memory$"):
        assign_queues(tile_partition(mint.exp), policy=hungry).lower(Aval((4, 8), "float32"))


@pytest.mark.parametrize("part", ["hpmoe.tiling.rebuild.derive_dependencies", "hpmoe.verification.verify.check_sizes"])
def test_a_plan_without_memory(monkeypatch, part):
    """That is no fault of the plan either."""
    def hungry(*args):
        raise MemoryError("no memory")

    monkeypatch.setattr(part, hungry)
    with pytest.raises(MemoryError, match="^no memory$"):
        verify(tile_partition(mint.exp).lower(Aval((4, 8), "float32")))


def test_what_a_handler_raises_is_not_the_policys(monkeypatch):
    """As that of a timer does, in the midst of a built-in policy."""
    def interrupted(flow, machine):
        raise TimeoutError("too slow")

    monkeypatch.setitem(POLICIES, "critical_path", interrupted)
    with pytest.raises(TimeoutError, match="^too slow$"):
        assign_queues(tile_partition(mint.exp)).lower(Aval((4, 8), "float32"))


# Programs that mix rows.

@pytest.mark.parametrize("name", MIXED)
def test_program_that_mixes_rows(name):
    f, equation = MIXED[name]
    text = error_of(lambda: tile_partition(f).lower(Aval((4, 3), "float32")), TransformError)
    head, *window = text.splitlines()
    assert re.match(rf"tile_partition: equation \d+ \({equation}\) of <lambda> ", head) and "rows" in head
    marked = [i for i, line in enumerate(window) if line.startswith("  > ")]
    assert len(marked) == 1 and f"= {equation}" in window[marked[0]]
    assert re.search(r"written at .*bad_arguments\.py:\d+", window[marked[0] + 1])


def test_sum_over_rows_is_fine():
    f = tile_partition(lambda x: mint.sum(x, dim=0), rows=2)
    np.testing.assert_array_equal(f(*tensors([np.ones((5, 3), np.float32)])).asnumpy(), np.full(3, 5, np.float32))


def test_cumulative_product_is_not_traceable():
    text = error_of(lambda: tile_partition(lambda x: ops.cumprod(x, 0)).lower(Aval((4, 3), "float32")), TraceError)
    assert "is not traceable" in text and re.search(f"at .*{HERE}", text) and "write instead" in text


def test_only_callables_are_transformed():
    text = error_of(lambda: tile_partition(3), TransformError)
    assert text == "tile_partition: f is int; it must be a callable, plain or staged; options are given by name"
    assert chain()(moe_ffn) is moe_ffn
