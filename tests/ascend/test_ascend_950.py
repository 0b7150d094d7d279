"""The Ascend kernel for a 950: equal numbers on an emulator of that chip, a named failure on an emulator of another chip."""

import ctypes
import shlex
import subprocess

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import AsOnCpu, LayerRun, ProgramRun, bf16, capped_run, emulator, f32, npu
from ascend_mutants_of_fp8 import MUTANTS_OF_FP8
from fp8_products import fp8_run
from helpers import Layer, in_dtype, tensors
from int8_products import int8_run
from lost_signals import simulated_wait_us
from mindspore.graph.api import _pynative_executor as executor
from mutated_kernel import catch_all, choose_among
from weight_bits import MATRICES, assert_bits_of_numpy

import hpmoe
from hpmoe.kernels import build_native
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.support.dtypes import widen
from hpmoe.support.errors import LaunchError

KERNELS = build_native.KERNELS
EMULATOR = "hpmoe/kernels/_emulator.so"
SMALL = Layer(ep=2, T=9, H=32, I=16, E=4, K=2)
NODES = Layer(ep=4, T=9, H=32, I=16, E=8, K=3, node_size=2)
DEEP = Layer(ep=1, T=21, H=304, I=144, E=2, K=1)
pytestmark = pytest.mark.slow


def use(patch, library):
    patch.setattr(emulator_library, "COMPILED", library)
    emulator_library.load.cache_clear()


@pytest.fixture(scope="module")
def emulator_950(tmp_path_factory):
    """Builds and loads an emulator of the 950 with the kernel for that chip."""
    library = tmp_path_factory.mktemp("emulator_950") / "_emulator.so"
    with pytest.MonkeyPatch.context() as patch:
        flags = ["-DHPMOE_CHIP=3510", "-DHPMOE_EMULATOR_CHIP=3510", "-fno-gnu-unique"]
        patch.setenv("CXX", shlex.join([*build_native.find_compiler(), *flags]))
        patch.setattr(build_native, "FLAGS", ("-std=c++17", "-O1", "-w", "-fPIC", "-pthread"))
        build_native.compile_library(EMULATOR, library)
        use(patch, library)
        yield library
    emulator_library.load.cache_clear()


RUNS = {
    "two ranks": lambda: LayerRun(SMALL, rows=4),
    "several steps": lambda: LayerRun(DEEP, rows=32, cols=96),
    "float16, four ranks": lambda: LayerRun(Layer(ep=4, T=7, H=48, I=24, E=8, K=3), ms.float16, blocks=2, signal="peer"),
    "float32": lambda: LayerRun(Layer(ep=1, T=21, H=40, I=27, E=2, K=1), ms.float32, rows=32, cols=96),
    "float32, several steps": lambda: ProgramRun(hpmoe.trace(lambda x, w: x @ w, f32(113, 300), f32(300, 144)), rows=128,
                                                 cols=160),
    "float32, copies": lambda: LayerRun(
        Layer(ep=2, T=9, H=20, I=20, E=4, K=2, routing="one expert"), ms.float32,
        hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[1, 1, 1, 9], replicas=2)),
    "two halves": lambda: ProgramRun(hpmoe.trace(lambda x, w: x @ w, bf16(16, 640), bf16(640, 256)), rows=16, cols=256),
    "a chain": lambda: ProgramRun(hpmoe.trace(lambda x, v, w: x @ v @ w, bf16(40, 32), bf16(32, 48), bf16(48, 32))),
    "capacity": lambda: capped_run(Layer(ep=2, T=15, H=32, I=16, E=4, K=2), 0.5, "probs", rows=4, blocks=2),
    "int8": int8_run,
    "fp8 rows": lambda: AsOnCpu(hpmoe.quantize_rows(hpmoe.moe_ffn, dtype="float8_e4m3fn", combine=True,
                                                    backward="quantized")),
    "mxfp8 rows": lambda: AsOnCpu(hpmoe.quantize_rows(hpmoe.moe_ffn, dtype="mxfp8", combine=True, backward="quantized")),
    "int8 weights": lambda: AsOnCpu(hpmoe.quantize_weights(hpmoe.moe_ffn), tiled_for=npu()),
    "fp8 weights": lambda: fp8_weights(),
    "mxfp8 weights": lambda: mxfp8_weights(),
    "fp8 by fp8": lambda: fp8_run("float8_e4m3fn"),
    "mxfp8 by mxfp8": lambda: fp8_run("mxfp8"),
    "fp8 by fp8, read early": lambda: fp8_run("float8_e4m3fn", prefetch=True),
    "mxfp8 by mxfp8, read early": lambda: fp8_run("mxfp8", prefetch=True),
    "a layer of fp8 by fp8": lambda: bytes_by_bytes("float8_e4m3fn", Layer(ep=2, T=9, H=70, I=35, E=4, K=2)),
    "a layer of mxfp8 by mxfp8": lambda: bytes_by_bytes("mxfp8", Layer(ep=2, T=9, H=64, I=64, E=4, K=2)),
    "mxfp8 of odd blocks": lambda: bytes_by_bytes("mxfp8", Layer(ep=2, T=9, H=40, I=97, E=4, K=2)),
    "mxfp8 by rows of float16": lambda: AsOnCpu(hpmoe.quantize_weights(hpmoe.moe_ffn, dtype="mxfp8"),
                                                tiled_for=npu(), dtype=ms.float16),
    "gradients of int8": lambda: rounded_gradients("int8"),
    "gradients of fp8": lambda: rounded_gradients("float8_e4m3fn"),
    "gradients of mxfp8": lambda: rounded_gradients("mxfp8"),
    "copies of mxfp8": lambda: bytes_by_bytes("mxfp8", Layer(ep=2, T=9, H=64, I=64, E=4, K=2, routing="one expert"),
                                              hpmoe.replicate_experts(loads=[1, 1, 1, 9], replicas=2)),
    "int8 rows": lambda: AsOnCpu(hpmoe.quantize_rows(hpmoe.moe_ffn, combine=True)),
    "once to a rank": lambda: LayerRun(Layer(ep=2, T=13, H=32, I=24, E=4, K=2),
                                       f=hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated")),
    "relays": lambda: LayerRun(NODES, f=hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical")),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_kernel_for_a_950_computes_what_numpy_does(emulator_950, run):
    RUNS[run]().assert_close_to_float64()


def test_a_wait_ends_by_the_counter_of_a_950(emulator_950):
    """The counter runs at 1 GHz; the kernel of an A2 would give up 20 times too early."""
    assert 4_000 <= simulated_wait_us(0.004) < 80_000
    assert simulated_wait_us(25.0) >= 25_000_000


def there_and_back(x, ids, weights):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=weights.shape[1])
    return hpmoe.combine(rows, route, weights)


class Rows:
    """Rows that go out and come back as fp8 or mxfp8, of elements of all sizes: in parts, and parts of blocks; of zeros, NaN
    and infinities, of large and of the least numbers. Weights of choices are powers of two, whose products are exact."""

    def __init__(self, element, cols, top_k, dtype="float32"):
        rng = np.random.default_rng(0)
        x = (rng.standard_normal((2, 9, cols)) * 2.0 ** rng.integers(-20, 3, (2, 9, cols))).astype(np.float32)
        x[0, 0], x[1, 1, 0], x[1, 2, -1], x[0, 3], x[0, 4] = 0, np.nan, -np.inf, -0.0, -1e-39
        x[0, 5], x[1, 5, ::2] = 3e35, 1e-42
        ids = rng.permuted(np.tile(np.arange(2 * top_k, dtype=np.int32), (2, 9, 1)), axis=2)[..., :top_k].copy()
        ids[rng.random(ids.shape) < 0.2] = -1
        self.args = tensors([*in_dtype([x], dtype), ids, 2.0 ** rng.integers(-2, 3, ids.shape).astype(np.float32)])
        self.plain = hpmoe.quantize_rows(there_and_back, dtype=element, combine=True)
        self.on_emulator = hpmoe.spmd(emulator(self.plain, rows=4), hpmoe.Mesh(2))

    def __call__(self):
        return [np.nan_to_num(widen(self.on_emulator(*self.args).asnumpy()), nan=np.float32(1e38))]

    def assert_close_to_float64(self):
        (got,), want = self(), hpmoe.spmd(self.plain, hpmoe.Mesh(2))(*self.args)
        np.testing.assert_array_equal(got, np.nan_to_num(widen(want.asnumpy()), nan=np.float32(1e38)))
        return [got]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("element", ["float8_e4m3fn", "mxfp8"])
@pytest.mark.parametrize("cols, top_k", [(2100, 1), (300, 6), (70, 3), (33, 130), (5, 2)])
def test_fp8_rows_have_the_bits_of_numpy(emulator_950, element, dtype, cols, top_k):
    Rows(element, cols, top_k, dtype).assert_close_to_float64()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("element", ["float8_e4m3fn", "mxfp8"])
@pytest.mark.parametrize("name", MATRICES)
def test_fp8_weights_have_the_bits_of_numpy(emulator_950, name, element, dtype):
    assert_bits_of_numpy(name, element, dtype)


def bytes_by_bytes(dtype, layer, *before, **options):
    """Rows are sent as bytes, and multiplied as they are."""
    f = hpmoe.chain(*before, hpmoe.quantize_rows(dtype=dtype), hpmoe.quantize_weights(dtype=dtype, row_dtype=dtype))
    return AsOnCpu(f(hpmoe.moe_ffn), layer, tiled_for=npu(), **options)


def rounded_gradients(dtype):
    """Which are multiplied by weights with k down, in several steps and halves, and not in whole fractals."""
    w8a8 = hpmoe.quantize_weights(dtype=dtype, row_dtype=dtype, backward="quantized")
    f = hpmoe.chain(hpmoe.quantize_rows(dtype=dtype, backward="quantized"), w8a8)(hpmoe.moe_ffn)
    return AsOnCpu(f, Layer(ep=2, T=9, H=140, I=265, E=4, K=2), tiled_for=npu(), cols=272)


def test_mxfp8_of_odd_blocks_is_refused_by_name(emulator_950):
    """Tiles are not those of an NPU here."""
    f = hpmoe.quantize_weights(hpmoe.moe_ffn, dtype="mxfp8", row_dtype="mxfp8")
    with pytest.raises(hpmoe.ArgumentError, match=r"the columns of its rows of mxfp8 is 40; it must be a multiple of 64"):
        AsOnCpu(f, Layer(ep=2, T=9, H=64, I=40, E=4, K=2))()
    f = hpmoe.quantize_weights(hpmoe.moe_ffn, dtype="mxfp8", row_dtype="mxfp8", backward="quantized")
    with pytest.raises(hpmoe.ArgumentError,
                       match="its weight of mxfp8 is one whose blocks lie across; it must be transposed"):
        AsOnCpu(f, Layer(ep=2, T=9, H=64, I=64, E=4, K=2))()


def fp8_weights():
    """With a column of zeros."""
    run = AsOnCpu(hpmoe.quantize_weights(hpmoe.moe_ffn, dtype="float8_e4m3fn"), tiled_for=npu())
    run.given[2][..., 3] = 0.0
    return run


def mxfp8_weights():
    layer = Layer(ep=2, T=5, H=300, I=71, E=4, K=2)
    return AsOnCpu(hpmoe.quantize_weights(hpmoe.moe_ffn, dtype="mxfp8"), layer, tiled_for=npu(), cols=96)


def test_every_planted_fault_of_fp8_is_caught(emulator_950, tmp_path, monkeypatch, capsys):
    runs = {"fp8 rows": Rows("float8_e4m3fn", 300, 6), "mxfp8 rows": Rows("mxfp8", 360, 6), "fp8 weights": fp8_weights(),
            "mxfp8 weights": mxfp8_weights(),
            **{name: RUNS[name]() for name in ("fp8 by fp8", "mxfp8 by mxfp8", "copies of mxfp8", "gradients of fp8")}}
    try:
        chosen = choose_among(MUTANTS_OF_FP8, tmp_path, "-DHPMOE_CHIP=3510", "-DHPMOE_EMULATOR_CHIP=3510", "-fno-gnu-unique")
        assert not catch_all(MUTANTS_OF_FP8, chosen, runs, monkeypatch, capsys)
    finally:
        emulator_library.load().hpmoe_emulator_use_kernel(None)


def compile_kernel(folder, chip, emulator_chip, of_emulator):
    library = folder / f"kernel_{chip}.so"
    subprocess.run([*build_native.find_compiler(), "-std=c++17", "-Og", "-w", "-fPIC", "-shared", "-fno-gnu-unique",
                    f"-DHPMOE_CHIP={chip}", f"-DHPMOE_EMULATOR_CHIP={emulator_chip}",
                    "-I", KERNELS, "-I", KERNELS / "ascendc/emulator",
                    KERNELS / "ascendc/kernel.cpp", of_emulator, "-o", library], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("chip, emulator_chip, fault", [
    (2201, 3510, "an AIC of a 950 has no MTE3|a 950 has no way from L1 to global memory"),
    (3510, 2201, "is of the 950|UB overflows")])
def test_a_kernel_of_another_chip_breaks_its_rules(emulator_950, tmp_path, monkeypatch, chip, emulator_chip, fault):
    original = KERNELS / "_emulator.so"
    use(monkeypatch, emulator_950 if emulator_chip == 3510 else original)
    loaded = emulator_library.load()
    other = compile_kernel(tmp_path, chip, emulator_chip, emulator_library.COMPILED)
    loaded.hpmoe_emulator_use_kernel(ctypes.cast(other.hpmoe_persistent, ctypes.c_void_p))
    try:
        with pytest.raises(LaunchError, match=fault):
            LayerRun(SMALL, rows=4)()
    finally:
        loaded.hpmoe_emulator_use_kernel(None)
        executor.clear_res()  # an exception inside a gradient leaves MindSpore in it
        executor.set_grad_flag(False)
