"""hpmoe calibrate --profile: constants of a machine are found again in the times of its kernels, and the rest is said."""

import functools
import json
import math

import profiles
import pytest

import hpmoe
from hpmoe.calibration import kernel_flows
from hpmoe.calibration.profile import calibrate_by_profile
from hpmoe.calibration.profile_table import read_kernels
from hpmoe.cli import main
from hpmoe.machines.machine import CONSTANTS
from hpmoe.support.errors import ArgumentError

TRUE = hpmoe.machines.ascend_a3.replace({"cube.flops_per_us": 14.2e6, "cube.efficiency": 0.78, "memory.bytes_per_us": 0.95e6,
                                "vector.bytes_per_us": 70e3, "link.bytes_per_us": 118e3})
CLOCK = TRUE.cube.flops_per_us / 8192  # cycles of a microsecond
SAY_NOTHING = str  # what a progress line is given goes nowhere


@functools.cache
def mine(vec_us=0.0):
    kernels = [
        profiles.product(TRUE, 3072, 2048, 4096, CLOCK), profiles.experts(TRUE, 3072, 1024, 2048, 4),
        profiles.elementwise(TRUE, "SwiGlu", hpmoe.swiglu, (8192, 4096), (8192, 2048)),
        profiles.elementwise(TRUE, "Add", lambda x, y: x + y, (8192, 3072), (8192, 3072)),
        profiles.exchange(TRUE, "dispatch", 96, 2048, 8), profiles.exchange(TRUE, "combine", 256, 7168, 8),
        profiles.kernel("RmsNorm", "AI_VECTOR_CORE", 20.0, [(4096, 7168)], [(4096, 7168)], blocks=48),
        profiles.kernel("hcom_allToAllV_", "COMMUNICATION", 200.0, [], [], blocks=0),
        profiles.kernel("QuantMatmul", "AI_CORE", 20.0, [(64, 64), (64, 64)], [(64, 64)]),
        profiles.kernel("MatMul", "AI_CORE", 20.0, [(64, 64), (64, 64)], [(64, 64)], ["INT8", "INT8"])]
    if vec_us:
        kernels[2]["aiv_vec_time(us)"] = vec_us
    return kernels


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    moved = 2 * 8192 * (4096 + 2048)
    return profiles.written(tmp_path_factory.mktemp("profile") / "op_summary_1.csv",
                            mine(moved / 48 / TRUE.vector.bytes_per_us))


@pytest.fixture(scope="module")
def found(path):
    return calibrate_by_profile(path, hpmoe.machines.ascend_a3, None, SAY_NOTHING)


def test_constants_of_the_machine_that_made_it_are_found(found):
    wanted = {name: TRUE[name] for name in ("cube.flops_per_us", "cube.efficiency", "memory.bytes_per_us",
                                                     "vector.bytes_per_us", "link.bytes_per_us", "num_aic", "num_aiv")}
    fitted = {f.name: f for f in found.fitted}
    assert fitted.keys() == wanted.keys() | {"host.launch_us"}
    for name, value in wanted.items():
        assert fitted[name].value == pytest.approx(value, rel=0.03) and found.machine[name] == fitted[name].value
        assert fitted[name].low <= value * 1.001 and value * 0.999 <= fitted[name].high, name
    assert fitted["host.launch_us"].value == pytest.approx(profiles.GAP_US + profiles.BEGIN_END_US, abs=1)
    assert all(abs(us / kernel.us - 1) < 0.03 for kernel, us in zip(found.kernels, found.simulated, strict=True))


def test_each_constant_is_fitted_or_it_is_said_why_not(found):
    fitted = {f.name for f in found.fitted}
    assert fitted | found.unfitted.keys() == set(CONSTANTS) and not fitted & found.unfitted.keys()
    assert found.unfitted["cube.float32_ratio"].startswith("no kernel hinges on it")
    assert "inside of a kernel" in found.unfitted["sync.poll_us"]
    assert all(found.machine[name] == hpmoe.machines.ascend_a3[name] for name in found.unfitted)
    assert {(row.kind, row.launches): row.why for row in found.unused} == {
        ("RmsNorm", 3): "the model has no kernel of this type", ("QuantMatmul", 3): "the model has no kernel of this type",
        ("hcom_allToAllV_", 3): "the file does not say its bytes", ("MatMul", 3): "the model has no rate of int8"}


def test_the_machine_is_a_file_whose_source_is_the_profile(path, found, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("hpmoe.commands.calibrate.calibrate_by_profile", lambda *args: found)
    assert main(["calibrate", f"--profile={path}"]) == 0
    (tmp_path / "printed.toml").write_text(capsys.readouterr().out)
    assert main(["calibrate", f"--profile={path}", f"--out={tmp_path / 'mine.toml'}"]) == 0
    shown = capsys.readouterr().out
    for file in ("printed.toml", "mine.toml"):
        machine = hpmoe.load_machine(tmp_path / file)
        assert machine == found.machine.replace(name="op_summary_1")
        constants, before = dict(machine.constants), dict(hpmoe.machines.ascend_a3.constants)
        for f in found.fitted:
            assert constants[f.name].source == f"op_summary_1.csv, by {f.by}" and constants[f.name].date.startswith("20")
        assert constants["sync.poll_us"] == before["sync.poll_us"]
        assert all(f"# {line}".rstrip() in (tmp_path / file).read_text() for line in shown.splitlines()[:-2])
    assert "hcom_allToAllV_, 3 launches, 600 us: the file does not say its bytes" in shown
    assert main(["calibrate", f"--profile={path}", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["simulated"] and {row["name"] for row in out["fitted"]} == {f.name for f in found.fitted}
    assert out["kernels"][0].keys() >= {"work", "launches", "measured_us", "simulated_us", "error"}


def test_a_plain_formula_is_met_by_kernels_that_were_not_fitted(tmp_path):
    """Made by no simulation: flops at 0.7 of the peak, bytes at 1.3 TB/s, 2 us of each kernel to begin and end."""
    first = hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": 1.16e6, "memory.worker_bytes_per_us": 145e3,
                                     "memory.write_cost": 1.0, "l2.worker_bytes_per_us": 160e3, "cube.efficiency": 0.95})
    peak = 24 * hpmoe.machines.ascend_a3.cube.flops_per_us
    kernels = [profiles.kernel("MatMulV2", "AI_CORE", 2 + 2 * m * k * n / (0.7 * peak), [(k, m), (k, n)], [(m, n)])
               for m, k, n in ((3072, 4096, 2048), (1536, 2048, 4096))]
    kernels += [profiles.kernel("Mul", "AI_VECTOR_CORE", 2 + 6 * rows * 8192 / 1.3e6, [(rows, 8192)] * 2, [(rows, 8192)],
                                blocks=48) for rows in (4096, 8192)]
    found = calibrate_by_profile(profiles.written(tmp_path / "a.csv", kernels), first, None, SAY_NOTHING)
    machine = found.machine
    for m, k, n in ((3072, 3072, 2048), (3072, 2048, 4096), (6144, 4096, 4096)):  # whole rounds of tiles on 24 cores
        us = hpmoe.simulate(kernel_flows.product_flow(hpmoe.machines.ascend_a3, m, k, n),
                            machine).span - machine.host.launch_us
        assert us + found.begin_end_us == pytest.approx(2 + 2 * m * k * n / (0.7 * peak), rel=0.05)
    assert machine.memory.bytes_per_us == pytest.approx(1.3e6, rel=0.05)
    assert found.unfitted["cube.efficiency"] == "without cycles it cannot be told from cube.flops_per_us"


def test_the_table_of_a_framework_is_read_too(tmp_path, path):
    """With names of its own; starts of 16 digits keep their nanoseconds."""
    renamed = {"Op Name": "Name", "OP Type": "Type", "Task Type": "Accelerator Core",
               "Task Start Time(us)": "Start Time(us)", "Task Duration(us)": "Duration(us)",
               "Task Wait Time(us)": "Wait Time(us)"}
    text = functools.reduce(lambda text, pair: text.replace(*pair), renamed.items(), path.read_text("utf-8-sig"))
    (tmp_path / "kernel_details.csv").write_text(text)
    kernels = read_kernels(tmp_path / "kernel_details.csv")
    assert kernels == read_kernels(path) and len(kernels) == 30
    assert kernels[0].inputs == ((3072, 2048), (4096, 2048)) and kernels[0].dtypes == ("bfloat16", "bfloat16")
    gaps = [after.start_us - before.start_us - before.us for before, after in zip(kernels, kernels[1:], strict=False)]
    assert all(gap == pytest.approx(profiles.GAP_US, abs=0.003) for gap in gaps)
    assert math.isclose(kernels[0].aic_cycles, kernels[0].aic_us * 24 * CLOCK, rel_tol=1e-4)


def test_exchanges_need_their_ranks_and_products_their_shapes(tmp_path):
    combine, dispatch = (profiles.exchange(TRUE, leg, 64, 256, 8) for leg in ("combine", "dispatch"))
    odd = profiles.kernel("MatMul", "AI_CORE", 5.0, [(4, 8), (7, 16)], [(4, 16)])
    sums = profiles.kernel("GroupedMatmul", "AI_CORE", 5.0, [(64, 8), (64, 16)], [(4, 8, 16)])
    empty = profiles.kernel("Add", "AI_VECTOR_CORE", 5.0, [(0, 8)] * 2, [(0, 8)])
    file = profiles.written(tmp_path / "a.csv", [combine, odd, sums, empty], times=1)
    found = calibrate_by_profile(file, hpmoe.machines.ascend_a3, None, SAY_NOTHING)
    assert {row.why for row in found.unused} == {
        "the file does not say the ranks of an exchange; --ep does", "its shapes are not those of a product",
        "it sums over rows of experts, whose numbers the file does not say", "it has no elements"}
    assert found.kernels == [] and found.begin_end_us is None
    assert found.unfitted["link.bytes_per_us"] == "the file has no kernel that the model has"
    assert found.unfitted["host.launch_us"] == "it has fewer than 8 gaps below 1000 us in a stream"
    small = profiles.written(tmp_path / "c.csv", [{**combine, "Mix Block Dim": 4, "Block Dim": 4}], times=1)
    assert calibrate_by_profile(small, hpmoe.machines.ascend_a3, None, SAY_NOTHING).unfitted["num_aiv"] == (
        "the largest kernel has 4 blocks, which may be all that they needed")
    told = calibrate_by_profile(file, hpmoe.machines.ascend_a3, profiles.EP, SAY_NOTHING)
    assert [kernel.work for kernel in told.kernels] == ["combine of 64 tokens, 8 of 64 experts, 8 ranks"]
    file = profiles.written(tmp_path / "b.csv", [dispatch, combine], times=1)
    assert len(calibrate_by_profile(file, hpmoe.machines.ascend_a3, None, SAY_NOTHING).kernels) == 2  # a dispatch says them


@pytest.mark.parametrize("change, message", [
    (lambda lines: [], "a.csv, line 1 is without a column OP Type or Type; it must be the header of msprof's"),
    (lambda lines: [lines[0].replace("Task Duration(us)", "x"), *lines[1:]],
     "a.csv, line 1 is without a column Task Duration(us) or Duration(us); it must be"),
    (lambda lines: lines[:1], "a.csv is a file without kernels; it must be one with a line for each launch"),
    (lambda lines: [*lines[:2], lines[2] + ",1"], "a.csv, line 3 is of 30 columns; it must be of 29, as the header"),
    (lambda lines: [*lines[:2], lines[2].replace("20.000", "soon")],
     "a.csv, line 3, Task Duration(us) is 'soon'; it must be a number from 0 to 1e18"),
    (lambda lines: [*lines[:2], lines[2].replace("20.000", "-1")], "line 3, Task Duration(us) is '-1'; it must be"),
    (lambda lines: [*lines[:2], lines[2].replace("20.000", "N/A")], "line 3, Task Duration(us) is ''; it must be"),
    (lambda lines: [*lines[:2], lines[2].replace("4096,7168", "4096x7168")],
     "line 3, Input Shapes is '4096x7168'; it must be shapes such as 4096,7168;7168,4096"),
    (lambda lines: ["\x00"], "without a column"),
    (lambda lines: ['"' + "x" * 200_000], "a.csv cannot be read as CSV"),
])
def test_a_file_that_is_none_is_named_by_line_and_column(tmp_path, capsys, change, message):
    path = profiles.written(tmp_path / "a.csv", [mine()[3], mine()[6]], times=1)
    lines = change(path.read_text("utf-8-sig").splitlines())
    path.write_text("\n".join(lines))
    with pytest.raises(ArgumentError) as error:
        read_kernels(path)
    assert message in str(error.value)
    assert main(["calibrate", f"--profile={path}"]) == 2 and message in capsys.readouterr().err


def test_flags_that_do_not_fit_each_other(tmp_path, capsys, monkeypatch):
    path = profiles.written(tmp_path / "a.csv", [mine()[6]], times=1)
    for flags, message in ((["--ep=8"], "flag --ep=8: it must be given with --profile"),
                           (["--out=a.toml"], "flag --out=a.toml: it must be given with --profile"),
                           ([f"--profile={path}", "--check"], "flag --check=True: it must be left out with --profile"),
                           ([f"--profile={path}", "--machine=cpu"], "flag --machine=cpu: it must be an NPU with --profile"),
                           ([f"--profile={path}", "--out=a.csv"], "flag --out=a.csv: it must be a file whose name ends in"),
                           ([f"--profile={path}", "--ep=2000000"], "flag --ep=2000000: it must be at most"),
                           ([f"--profile={tmp_path / 'no.csv'}"], "no.csv cannot be read as CSV: ")):
        assert main(["calibrate", *flags]) == 2 and message in (text := capsys.readouterr().err)
        assert text.count("hpmoe calibrate: ") == 1
    with pytest.raises(ArgumentError, match="machine is cpu; it must be one of an NPU"):
        calibrate_by_profile(path, hpmoe.cpu(2), None, SAY_NOTHING)
    monkeypatch.setattr("hpmoe.calibration.profile_table.MOST_KERNELS", 0)
    with pytest.raises(ArgumentError, match="of more than 0 kernels; it must be of at most 0; profile fewer steps"):
        read_kernels(path)
