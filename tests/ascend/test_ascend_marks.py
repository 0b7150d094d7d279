"""Functions that the Ascend kernel shares with hosts, as a compiler for the device sees them."""

import re
import subprocess

from hpmoe.kernels.build_native import KERNELS, find_compiler

STAND_INS = "kernel_operator.h", "device/gm2gm/engine/shmem_device_mte.h"  # headers of the Ascend C API, here empty


def lines_by_file(text):
    """Lines of preprocessed text by the path of their source."""
    lines, path = {}, ""
    for line in text.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        path = marker[1] if marker else path
        lines.setdefault(path, []).append(line)
    return lines


def test_shared_functions_are_marked_for_the_device(tmp_path):
    for name in STAND_INS:
        header = tmp_path / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    command = [*find_compiler(), "-std=c++17", "-E", "-I", tmp_path, "-I", KERNELS, KERNELS / "ascendc/kernel.cpp"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shared = {path: lines for path, lines in lines_by_file(text).items() if path.startswith(f"{KERNELS}/core/")}
    for path, lines in shared.items():
        with open(path) as source:
            wanted = len(re.findall(r"^\s*(?:HPMOE_DEVICE|__aicore__)", source.read(), re.MULTILINE))
        assert sum(line.lstrip().startswith("__aicore__") for line in lines) == wanted, path
    assert len(shared) > 10


def test_headers_of_host_and_device_mark_every_function():
    for name in ("launch_args.h", "tables.h", "plans.h"):
        text = (KERNELS / "ascendc" / name).read_text()
        assert not re.findall(r"^ *(?:constexpr|inline|static) .*\) (?:const )?{", text, re.MULTILINE), name


def test_pipes_and_caches_are_ordered_for_the_compiler():
    """Calls are in functions of device.h, between two barriers of the compiler."""
    call = r"AscendC::(?:PipeBarrier<PIPE_ALL>|DataCacheCleanAndInvalid<.*)\("
    for path in (*KERNELS.glob("ascendc/*.h"), KERNELS / "ascendc/kernel.cpp"):
        text = path.read_text()
        found = re.findall(rf"keep_order\(\);\n +{call}.*\);\n +keep_order\(\);", text)
        assert len(re.findall(call, text)) == len(found) == (2 if path.name == "device.h" else 0), path
        assert "initializer_list" not in text and not re.search(r"for \([^;)]* : {", text), path
