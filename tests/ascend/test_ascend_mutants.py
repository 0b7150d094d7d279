"""Faults planted in the Ascend kernel, one by one: the emulator catches every one, by a rule of the hardware or by wrong
numbers.

One compilation holds all of them; a variable says which one the kernel has.
"""

import functools

import mindspore as ms
import numpy as np
import pytest
from aligned_rows import aligned
from ascend_helpers import AsOnCpu, LayerRun, ProgramRun, bf16, capped_run, emulator, f32, npu
from ascend_mutants import MUTANTS as MUTANTS_OF_BODIES
from ascend_mutants_of_cores import MUTANTS_OF_CORES
from ascend_mutants_of_plans import MUTANTS_OF_PLANS
from ascend_mutants_of_relays import MUTANTS_OF_RELAYS
from ascend_mutants_of_routers import MUTANTS_OF_ROUTERS
from ascend_mutants_of_weights import MUTANTS_OF_WEIGHTS
from chosen_plans import ChosenRun
from helpers import Layer, assert_close, fused
from int8_products import int8_run
from mindspore import mint
from mutated_kernel import catch_all, choose_among
from sharded_layers import on_ranks, whole

import hpmoe
from hpmoe import (
    ShapeDtypeStruct,
    combine,
    dispatch,
    grouped_matmul,
    guard_values,
    moe_ffn,
    quantize_rows,
    quantize_weights,
    replicate_experts,
    send_rows,
    trace,
)
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.primitives.columns import add_columns, cumsum
from hpmoe.primitives.draw import draw
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.token_ops import rms_norm_rows

MUTANTS = (*MUTANTS_OF_BODIES, *MUTANTS_OF_CORES, *MUTANTS_OF_ROUTERS, *MUTANTS_OF_RELAYS, *MUTANTS_OF_WEIGHTS,
           *MUTANTS_OF_PLANS)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """A function that makes the emulator run a mutant by number; 0 is the kernel as it is."""
    yield choose_among(MUTANTS, tmp_path_factory.mktemp("mutants"))
    emulator_library.load().hpmoe_emulator_use_kernel(None)


class Ahead(LayerRun):
    """Each of its launches is three in a row, in which ranks may be ahead of each other."""

    def __call__(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(emulator_library, "load", functools.partial(Launches, emulator_library.load(), 3))
            return super().__call__()


class Launches:
    """The emulator's library, each launch of which runs `count` launches in a row."""

    def __init__(self, emulator, count):
        self.emulator, self.count = emulator, count

    def __getattr__(self, name):
        return getattr(self.emulator, name)

    def hpmoe_emulator_launch(self, image, size, ranks, num_ranks, epoch, num_launches, *rest):
        return self.emulator.hpmoe_emulator_launch(image, size, ranks, num_ranks, self.count * (epoch - 1) + 1,
                                           self.count * num_launches, *rest)


class AfterOtherIds(ProgramRun):
    """Each of its launches comes after one in whose memory other rows are zeros."""

    def __call__(self):
        x, ids, *rest = self.inputs
        self.kernel.run([[x, (ids + 1) % 3, *rest]])
        return super().__call__()


class AfterOtherWeights(ProgramRun):
    """Each of its launches comes after one with another second weight."""

    def __call__(self):
        x, first, second = self.inputs
        self.kernel.run([[x, first, second + 1]])
        return super().__call__()


class Overflow(ProgramRun):
    """Some of its results are infinite."""

    def assert_close_to_float64(self):
        self.inputs[0][3:], self.inputs[1][...] = 2e38, 1
        got = self()
        assert all(np.isinf(a[3:]).all() and np.isfinite(a[:3]).all() for a in got)
        return got


@pytest.fixture(scope="module")
def layers():
    """A layer over two ranks in small tiles, one that goes several steps deep and has a slot of a single row, programs whose
    tasks need what the one before has written, or whose parts add up, and layers and products of float32."""
    small = LayerRun(Layer(ep=2, T=9, H=32, I=16, E=4, K=2), rows=4)
    deep = LayerRun(Layer(ep=1, T=21, H=304, I=144, E=2, K=1), rows=32, cols=96)
    deep.ids[0, :, 0] = 0
    deep.ids[0, 20, 0] = 1
    early = LayerRun(Layer(ep=2, T=9, H=80, I=72, E=2, K=1), rows=4, cols=144, prefetch=True)
    chain = ProgramRun(trace(lambda x, v, w: x @ v @ w, bf16(40, 32), bf16(32, 48), bf16(48, 32)))
    adjacent = ProgramRun(trace(lambda x, v, w: x @ v @ w, bf16(16, 32), bf16(32, 32), bf16(32, 32)))
    wide = ProgramRun(trace(lambda x, w: x @ w, bf16(16, 640), bf16(640, 256)), rows=16, cols=256)
    sums = ProgramRun(trace(lambda x: (mint.sum(x * 2.0 + 1.0, -1, True), mint.sum(x, 0)), bf16(37, 72)))
    norms = ProgramRun(linearize(trace(lambda x: rms_norm_rows(x, eps=0.1),
                                       ShapeDtypeStruct((3, 2500), "float32"))).backward)
    functions = ProgramRun(trace(lambda x, y: mint.where(mint.greater(x, y), mint.sin(x * 8e3), y),
                                 *[ShapeDtypeStruct((9, 200), "float32")] * 2))
    late = AfterOtherWeights(trace(through_a_late_weight, f32(9, 24), f32(24, 24), f32(24, 24)))
    in_order = capped_run(Layer(ep=1, T=9, H=32, I=16, E=4, K=2), 0.5, "position", rows=4)
    drops = capped_run(Layer(ep=2, T=15, H=32, I=16, E=4, K=2), 0.5, "probs", rows=4, blocks=2)
    shared = capped_run(Layer(ep=2, T=13, H=32, I=24, E=4, K=2), 0.8, "position", rows=4, wrap=lambda f: send_rows(
        replicate_experts(f, loads=[9, 9, 1, 1], replicas=2), scheme="deduplicated"))
    float32 = LayerRun(Layer(ep=1, T=21, H=40, I=27, E=2, K=1), ms.float32, rows=32, cols=96)
    float32.ids[0, :, 0] = 0
    float32.ids[0, 20, 0] = 1
    deep_float32 = ProgramRun(trace(lambda x, w: x @ w, f32(113, 300), f32(300, 144)), rows=128, cols=160)
    shared_float32 = LayerRun(Layer(ep=2, T=9, H=20, I=20, E=4, K=2, routing="one expert"), ms.float32,
                              replicate_experts(moe_ffn, loads=[1, 1, 1, 9], replicas=2))
    choices = ProgramRun(trace(lambda x, ids, w: combine(*dispatch(x, ids, num_local_experts=130), w),
                               f32(2, 20), ShapeDtypeStruct((2, 130), "int32"), f32(2, 130)))
    choices.inputs[1][...] = np.arange(130)
    many = ProgramRun(trace(through_experts, f32(5200, 8), ShapeDtypeStruct((5200, 2), "int32"), f32(5200, 2), f32(3, 8, 8)),
                      rows=512)
    many.inputs[1][:] = [(0, 1 + (i % 9 == 0)) for i in range(5200)]
    grouped = LayerRun(Layer(ep=1, T=90, H=16, I=16, E=20, K=2), rows=16, blocks=3)
    ahead = Ahead(Layer(ep=4, T=4, H=16, I=16, E=4, K=1), rows=4, blocks=2)
    filled = AfterOtherIds(trace(filled_up, f32(21, 24), ShapeDtypeStruct((21, 2), "int32"), f32(21, 2), f32(3, 24, 24)),
                           rows=4)
    filled.inputs[1][...] = [[i % 2, 2] for i in range(21)]
    overflow = Overflow(trace(lambda x, w, b: (x * 4.0 + b, x @ w), bf16(9, 32), bf16(32, 24), bf16(32)))
    return {"chain": chain, "wide": wide, "sums": sums, "norms": norms, "small": small, "deep": deep, "functions": functions,
            "late": late, "in order": in_order, "drops": drops, "shared": shared, "many choices": choices,
            "float32": float32, "deep float32": deep_float32, "shared float32": shared_float32, "overflow": overflow,
            "ahead": ahead, "aligned": filled,
            "aligned, two ranks": LayerRun(Layer(ep=2, T=9, H=32, I=16, E=4, K=2), f=aligned(6), rows=4),
            "adjacent": adjacent, "many": many, "grouped": grouped, "early": early, "router": routed(),
            "guarded": AsOnCpu(guard_values(moe_ffn, low=-0.05, high=0.2, fill="mean")), "sharded": Sharded(),
            "relays": relayed(send_rows(moe_ffn, scheme="hierarchical")),
            "relays, once": relayed(send_rows(moe_ffn, scheme="hierarchical+deduplicated")),
            "plans": ChosenRun(tile_rows=(16, 4, 8)), "returned": Returned(),
            "main gradients": Accumulated(Layer(ep=1, T=9, H=32, I=16, E=2, K=2)),
            "int8": int8_run(), "int8 both ways": AsOnCpu(quantize_rows(moe_ffn, combine=True)),
            "int8 gradients": int8_gradients(),
            "weights": AsOnCpu(quantize_weights(moe_ffn), Layer(ep=2, T=9, H=300, I=71, E=4, K=2), tiled_for=npu(), cols=96)}


def int8_gradients():
    """Multiplied by weights with k down: several parts of L0, two halves of columns, and sides that are no whole squares."""
    f = quantize_weights(moe_ffn, row_dtype="int8", backward="quantized")
    return AsOnCpu(f, Layer(ep=2, T=9, H=140, I=135, E=4, K=2), cols=160)


def relayed(f):
    """A put is for both ranks of a node, and some tokens cross to one node alone."""
    return LayerRun(Layer(ep=4, T=9, H=32, I=16, E=8, K=2, num_tokens=(9, 0, 4, 7), node_size=2), ms.float32, f, rows=4,
                    blocks=2, order=lambda rank, ep_size: [0, 2, 1, 3])


class Accumulated(LayerRun):
    """A layer whose weights' gradients are added to main gradients, and whose products follow these."""

    def __init__(self, layer):
        names, weights = ("gate_up_weight", "down_weight"), layer.arguments()[3:]
        self.mains = {name: ms.Tensor(np.zeros(a.shape, np.float32)) for name, a in zip(names, weights, strict=True)}
        super().__init__(layer, f=hpmoe.accumulate_grads(moe_ffn, into=self.mains), rows=4)

    def __call__(self):
        for main in self.mains.values():
            main.asnumpy()[...] = 0
        return [*super().__call__()[:3], *(main.asnumpy().copy() for main in self.mains.values())]


class Returned:
    """The gradient of a dispatch alone: ranks read the lists of others whose rows they do not wait for."""

    RANKS, TOKENS, LAUNCHES = 3, 40, 4

    def __init__(self):
        shapes = f32(self.TOKENS, 16), ShapeDtypeStruct((self.TOKENS, 2), "int32")
        self.sent = trace(lambda x, ids: dispatch(x, ids, num_local_experts=2)[0], *shapes, mesh=hpmoe.Mesh(self.RANKS))
        self.program = linearize(self.sent).backward
        flow = hpmoe.overlap_comm.apply_to(hpmoe.tile_partition.apply_to(self.program, rows=16, cols=32))
        self.kernel = EMULATOR.compile([hpmoe.assign_queues.apply_to(flow, machine=npu(2))], 100.0)
        self.inputs = [self.of_ranks(seed) for seed in range(self.LAUNCHES)]

    def of_ranks(self, seed):
        rng = np.random.default_rng(seed)
        ids = [rng.random((self.TOKENS, 2 * self.RANKS)).argsort(-1)[:, :2].astype(np.int32) for _ in range(self.RANKS)]
        sent = interpret(self.sent, [[rng.standard_normal((self.TOKENS, 16)).astype(np.float32), a] for a in ids],
                         dtype="float64")
        return [[a, rows.astype(np.float32)] for a, (rows,) in zip(ids, sent, strict=True)]

    def __call__(self):
        return [np.asarray(out).copy() for inputs in self.inputs for (out,) in self.kernel.run(inputs)]

    def assert_close_to_float64(self):
        got = self()
        assert_close(got, [out for inputs in self.inputs for (out,) in interpret(self.program, inputs, dtype="float64")])
        return got


class Sharded:
    """A layer of experts in shards that drops its lightest entries, and counts them."""

    def __init__(self):
        args, _ = whole(2, 2, T=9, K=3)
        args[2] = np.round(args[2] * 2) / 2
        self.given = [ms.Tensor(a) for a in on_ranks(args, hpmoe.Mesh(2, tp=2))]
        self.fused, self.on_cpu = (hpmoe.spmd(f(self.capped), hpmoe.Mesh(2, tp=2)) for f in (
            lambda f: emulator(f, rows=4), fused(rows=4)))

    @staticmethod
    def capped(*args):
        return moe_ffn(*args, capacity_factor=0.5, drop_policy="probs", return_drop_counts=True)

    def __call__(self):
        return [a.asnumpy() for a in self.fused(*self.given)]

    def assert_close_to_float64(self):
        got = self()
        assert_close(got, [a.asnumpy() for a in self.on_cpu(*self.given)])
        return got


def through_experts(x, ids, weights, w):
    rows, route = dispatch(x, ids, num_local_experts=3)
    return combine(grouped_matmul(rows, w, route), route, weights)


def routed():
    """All that a router may be made of, of floats with NaN and of large integers."""
    run = ProgramRun(trace(of_a_router, f32(9, 40), f32(9, 200), ShapeDtypeStruct((9, 40), "int32"),
                           ShapeDtypeStruct((9, 100), "int64"),
                           ShapeDtypeStruct((1,), "int32")), rows=4)
    rng = np.random.default_rng(1)
    run.inputs[1][2, ::7], run.inputs[1][2, 1::9] = np.nan, np.inf
    run.inputs[3][...] = rng.integers(-2**62, 2**62, (9, 100))
    run.inputs[0][1, :4] = 3e20, -2.5, 1e-3, 0.75
    return run


def of_a_router(x, with_nan, ids, large, seed):
    groups = x.reshape(9, 4, 10)
    remainder, floor_div = REGISTRY["remainder"], REGISTRY["floor_div"]
    return (*mint.topk(x, 7), mint.topk(x, 33, largest=False)[1], mint.topk(with_nan, 200)[1], mint.sort(large, dim=1)[1],
            mint.argsort(ids, dim=1), mint.gather(x, 1, ids), mint.gather(ids, 1, ids % 40),
            add_columns(x, ids % 8 - 1, num_cols=7), mint.cumsum(x, 1), cumsum(x, reverse=True),
            groups[:, 1:3, ::3], mint.sum(groups, 1), mint.amax(groups, 1), mint.amax(groups, 2),
            mint.nn.functional.pad(groups, (1, 2)), mint.cat((groups, groups * 2.0), 1),
            draw(seed, shape=(9, 90), stream=1) * 16.0, large // 3 + ids[:, :1], ids // 3, mint.sum(large, 1),
            mint.amax(large, 1), remainder(x, 0.375), floor_div(x, -0.375))


def through_a_late_weight(x, first, second):
    """When the first product ends, the rows of the second are there, and its weight is not."""
    more, rows = x + 1.0, x * 2.0  # the first product waits for the later one; neither takes the other's memory
    for _ in range(4):
        second = mint.cumsum(second * 0.1, 1)
    return rows @ first, more @ second


def filled_up(x, ids, weights, w):
    """Rows of zeros go through a product and back, and each adds 1 to a sum over all rows."""
    rows, route = dispatch(x, ids, num_local_experts=3, expert_alignment=6)
    return combine(grouped_matmul(rows, w, route), route, weights), mint.exp(rows).sum(0)


@pytest.mark.slow
def test_every_planted_fault_is_caught(chosen, layers, monkeypatch, capsys):
    assert not catch_all(MUTANTS, chosen, layers, monkeypatch, capsys) and len(MUTANTS) >= 260
