"""The whole chain with the Ascend kernel on its emulator: small layers, what they give and what they should."""

import contextlib
import itertools

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, for_several, fused, in_parts, kept_by_hand, numpy_moe_ffn

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, fuse_persistent, overlap_comm, prefetch_weights, tile_partition
from hpmoe.interpreters.interpret import interpret
from hpmoe.kernels.ascendc.emulator import target as emulator_target
from hpmoe.support.dtypes import numpy_dtype

# Half precision is rounded at every stored array; sums of float32 at every addition.
TOLERANCE = {ms.bfloat16: 2e-2, ms.float16: 3e-3, ms.float32: 3e-6}


def npu(blocks=1):
    return hpmoe.machines.ascend_a3.replace(num_aic=blocks, num_aiv=2 * blocks)


def emulator(f, rows=16, cols=32, blocks=1, target="ascend-emulator", put_cols=None, num_peers=None, tiled_for=None,
             prefetch=False, parts=None, **comm):
    tiles = tile_partition(f, rows=rows, cols=cols, machine=tiled_for)
    puts = overlap_comm(in_parts(tiles, parts=parts) if parts else tiles, put_cols=put_cols, **comm)
    puts = prefetch_weights(puts) if prefetch else puts
    queues = assign_queues(for_several(puts, num_peers=num_peers) if num_peers else puts, machine=npu(blocks))
    return fuse_persistent(queues, target=target, timeout=100.0)


@contextlib.contextmanager
def own_targets():
    """Targets registered inside are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hpmoe.runtime.targets, "_TARGETS", dict(hpmoe.runtime.targets._TARGETS))
        yield


def from_seed(monkeypatch, seed):
    """The next launches on the emulator run in the orders of these seeds."""
    monkeypatch.setattr(emulator_target, "SEEDS", itertools.count(seed))


class LayerRun:
    """A layer forward and backward through MindSpore: its output and the gradients of all arguments but the ids.

    `kept` [ep, T, K] says which entries have an effect, all by default.
    """

    def __init__(self, layer, dtype=ms.bfloat16, f=hpmoe.moe_ffn, kept=None, **options):
        x, ids, *rest = (ms.Tensor(a) for a in layer.arguments())
        self.layer, self.dtype, self.ids, self.kept = layer, dtype, ids, kept
        self.given = [a.astype(dtype) for a in (x, *rest)]
        self.cotangent = ms.Tensor(layer.cotangent()).astype(dtype)
        self.fused = hpmoe.spmd(emulator(f, **options), layer.mesh)

    def __call__(self):
        def loss(x, *rest):
            out = self.fused(x, self.ids, *rest, num_tokens=self.layer.num_tokens)
            return (out.astype(ms.float32) * self.cotangent.astype(ms.float32)).sum(), out

        (_, out), grads = ms.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*self.given)
        return [a.astype(ms.float32).asnumpy() for a in (out, *grads)]

    def expected(self):
        x, *rest = (a.astype(ms.float32).asnumpy() for a in self.given)
        cotangent = self.cotangent.astype(ms.float32).asnumpy()
        out, grads = numpy_moe_ffn((x, self.ids.asnumpy(), *rest), cotangent, self.layer.num_tokens, self.kept)
        return [out, *grads]

    def assert_close_to_float64(self):
        got = self()
        assert_close(got, self.expected(), tolerance=TOLERANCE[self.dtype])
        return got


class AsOnCpu(LayerRun):
    """A layer that a CPU has right: one that guards what it makes, or rounds it."""

    def __init__(self, f, layer=None, dtype=ms.float32, **options):
        super().__init__(layer or Layer(ep=2, T=9, H=40, I=16, E=4, K=2), dtype, f, rows=4, **options)
        self.on_cpu = hpmoe.spmd(fused(rows=4)(f), hpmoe.Mesh(2))

    def assert_close_to_float64(self):
        got, on_emulator = self(), self.fused
        self.fused = self.on_cpu
        assert_close(got, self(), tolerance=TOLERANCE[self.dtype])
        self.fused = on_emulator
        return got


def capped(factor, policy):
    return lambda *args: hpmoe.moe_ffn(*args, capacity_factor=factor, drop_policy=policy)


def capped_run(layer, factor, policy, dtype=ms.bfloat16, wrap=lambda f: f, **options):
    """A layer that drops, and what it should keep; many of its weights are equal, and some are zeros of either sign."""
    run = LayerRun(layer, dtype, wrap(capped(factor, policy)), **options)
    coarse = np.round(run.given[1].astype(ms.float32).asnumpy())
    run.given[1] = ms.Tensor(coarse).astype(dtype)
    run.kept, dropped = kept_by_hand(run.ids.asnumpy(), coarse, factor, policy, layer.E, layer.num_tokens)
    assert dropped.any()
    return run


def bf16(*shape):
    return ShapeDtypeStruct(shape, "bfloat16")


def f32(*shape):
    return ShapeDtypeStruct(shape, "float32")


class ProgramRun:
    """A program of one rank on the emulator: its outputs. Integers are indices of at most 8 rows."""

    def __init__(self, program, rows=16, cols=32, prefetch=False):
        self.program = program
        flow = overlap_comm.apply_to(tile_partition.apply_to(program, rows=rows, cols=cols))
        flow = prefetch_weights.apply_to(flow) if prefetch else flow
        self.kernel = emulator_target.EMULATOR.compile([assign_queues.apply_to(flow, machine=npu())], 100.0)
        rng = np.random.default_rng(0)
        self.inputs = [rng.integers(-8, 8, v.aval.shape).astype(np.int32) if v.aval.dtype == "int32" else
                       (rng.standard_normal(v.aval.shape) * 0.5).astype(numpy_dtype(v.aval.dtype)) for v in program.inputs]

    def __call__(self):
        return [np.asarray(out).astype(np.float32) for out in self.kernel.run([self.inputs])[0]]

    def assert_close_to_float64(self):
        got = self()
        assert_close(got, interpret(self.program, [self.inputs], dtype="float64")[0], tolerance=TOLERANCE[ms.bfloat16])
        return got

    def assert_products_within_roundings(self):
        """Checks a program that only multiplies and adds: the error of a number is at most one float32 rounding of the sum
        of absolute values for each addition, in any order."""
        got = self()
        want, total = (interpret(self.program, [inputs], dtype="float64")[0] for inputs in (
            self.inputs, [np.abs(a) for a in self.inputs]))
        depth = max(max(v.aval.shape) for v in self.program.inputs)
        for a, b, size in zip(got, want, total, strict=True):
            excess = np.abs(a - b) / (depth * 2.0**-24 * size)
            assert excess.max() <= 1, excess.max()
        return got
