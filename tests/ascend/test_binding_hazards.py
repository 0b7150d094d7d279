"""Hazards that the host side of the Ascend kernel prevents, on the emulator: too few cores, and signals that
arrive before the receiving memory is cleared."""

import ctypes
import subprocess
from pathlib import Path

import pytest
from native.image_builder import ImageBuilder

from hpmoe.kernels import build_native
from hpmoe.kernels.ascendc import heap as ascend_heap
from hpmoe.kernels.ascendc.build import HOST, KERNELS
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.kernels.protocol import Code
from hpmoe.support.errors import LaunchError

MEETING = "  device_->meet();  // no rank signals before all counters are cleared\n"
SEEDS = 8  # launches that a missing meeting is looked for in


@pytest.fixture(scope="module")
def bindings(tmp_path_factory):
    """Loaded libraries of the host side: "whole", and "unmet" without the barrier after memory is cleared."""
    folder, source = tmp_path_factory.mktemp("binding"), (HOST / "bound_kernel.cc").read_text()
    assert source.count(MEETING) == 1
    (folder / "whole.cc").write_text(source)
    (folder / "unmet.cc").write_text(source.replace(MEETING, ""))
    rest = [Path(__file__).parents[1] / "native/binding_driver.cc", HOST / "emulator_device.cc", KERNELS / "core/image.cc",
            KERNELS / "core/stuck.cc"]
    includes = [f"-I{p}" for p in (HOST, KERNELS, KERNELS / "ascendc", KERNELS / "ascendc/emulator")]
    emulator_library.load()
    libraries = {}
    for name in ("whole", "unmet"):
        library = folder / f"{name}.so"
        done = subprocess.run([*build_native.find_compiler(), "-std=c++17", "-O0", "-fPIC", "-shared", *includes,
                               folder / f"{name}.cc", *rest, emulator_library.COMPILED, "-o", library],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        libraries[name] = ctypes.CDLL(str(library))
    return libraries


def bind_and_launch(library, num_ranks=2, num_blocks=1, num_cores=24):
    """Returns the Code that the ranks report, or the error text of the host."""
    image, emulator = ImageBuilder(num_ranks, num_queues=3 * num_blocks).pack(), emulator_library.load()
    said = ctypes.create_string_buffer(4096)
    sizes = [ctypes.c_int64(f(image.ctypes.data))
             for f in (emulator.hpmoe_emulator_counters, emulator.hpmoe_emulator_table_words)]
    code = library.bind_and_launch(image.ctypes.data_as(ctypes.c_char_p), ctypes.c_int64(image.nbytes), num_ranks, *sizes,
                                   num_cores, said)
    return Code(code) if code >= 0 else said.value.decode()


@pytest.mark.slow
def test_without_a_barrier_signals_before_clearing_are_lost(bindings):
    assert {bind_and_launch(bindings["whole"]) for _ in range(SEEDS)} == {Code.OK}
    assert Code.TIMEOUT in {bind_and_launch(bindings["unmet"]) for _ in range(SEEDS)}


@pytest.mark.slow
def test_more_blocks_than_cores_are_refused_by_name(bindings):
    assert bind_and_launch(bindings["whole"], num_ranks=1, num_blocks=20, num_cores=20) == Code.OK
    assert bind_and_launch(bindings["whole"], num_ranks=1, num_blocks=24, num_cores=20) == (
        "the kernel has 24 blocks, which wait for each other, and the device has 20 AIC cores: plan for it, with "
        "assign_queues(machine=hpmoe.machines.ascend_a3.replace(num_aic=20, num_aiv=40))")


def test_the_binding_refuses_with_an_error_that_names_the_kernel():
    class Operator:
        make_unique_id = staticmethod(lambda: b"")
        open_device = staticmethod(lambda *args: object())

        @staticmethod
        def bind(*args):
            raise RuntimeError("the kernel has 24 blocks")

    class Kernel:
        name, symmetric_bytes = "moe_ffn", ascend_heap.ROUNDING

        def bind(self, device, rank):
            return Operator.bind(device, rank)

    heap = ascend_heap.SymmetricHeap(Operator, ascend_heap.WorldRanks(0, 1))
    with pytest.raises(LaunchError, match="moe_ffn: the kernel has 24 blocks"):
        heap.kernel_of(Kernel())
