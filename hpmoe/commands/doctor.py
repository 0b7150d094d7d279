"""hpmoe doctor: reports what is installed, whether it fits, and which targets can be used."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
from absl import flags

import hpmoe
from hpmoe.commands import doctor_ranks, doctor_reach, options
from hpmoe.kernels.ascendc.build import DEVICES, NPUS, run_needs
from hpmoe.kernels.ascendc.device import Npu, find_npu
from hpmoe.kernels.ascendc.emulator.native import load as load_emulator
from hpmoe.kernels.native import find_blas, find_library, gemm_name, products_name
from hpmoe.machines.npu_bins import BINS, bin_name
from hpmoe.planner import planner
from hpmoe.runtime.targets import target_names
from hpmoe.support import host, mindspore_checks
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.support.versions import numbers, untested_mindspore, version

SUMMARY = "says which targets are ready, and what is missing for the others"
NOTES = """\
  hpmoe doctor --verbose
  hpmoe doctor --target=ascend
Exits with 1 where something hpmoe needs does not fit, MindSpore included, or the cpu target is not usable."""

OTHERS = ("chex", "jax", "torch", "hypothesis", "matplotlib")


def define(values: flags.FlagValues) -> None:
    options.define_switch(values, "verbose", "print versions, libraries, launchers and limits, too")
    options.define_choice(values, "target", None, "instead: what its kernel runs and what it refuses", target_names())


def run(o: flags.FlagValues) -> int:
    if o.target is not None:
        found = doctor_reach.reach(o.target)
        return options.report(o, found, "\n".join(doctor_reach.lines(found)))
    report = diagnosis()
    lines = [report["verdict"], *(report_lines(report) if o.verbose else fault_lines(report))]
    return options.report(o, report, "\n".join(lines), report["ok"])


def diagnosis() -> Fields:
    packages = {name: package(name, needs) for name, needs in requirements().items()}
    optional = {name: version(name) for name in OTHERS}
    targets = {"cpu": cpu_target(), "ascend-emulator": emulator_target(),
               "ascend": ascend_target(os.environ, DEVICES)}
    faults = mindspore_checks.faults()
    return {
        "verdict": verdict(targets),
        "ok": all(p["fits"] for p in packages.values()) and targets["cpu"]["usable"] and not any(faults.values()),
        "hpmoe": {"version": version("hpmoe"), "folder": str(Path(hpmoe.__file__).parent)},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": platform.platform(),
        "cpu": {"name": host.cpu_name(), "cores": host.num_cores()},
        "compiler": compiler(os.environ),
        "packages": packages,
        "optional": optional,
        "private_names": faults,
        "native": native(),
        "targets": targets,
        "ranks": doctor_ranks.ranks(),
    }


# Packages.


def requirements() -> dict[str, str]:
    """Returns the requirements of the installed hpmoe, such as {"numpy": "<2,>=1.26"}, without its extras."""
    try:
        lines = metadata.requires("hpmoe") or []
    except metadata.PackageNotFoundError:
        lines = []
    plain = [known(re.match(r"([\w.-]+)\s*(.*)", line)) for line in lines if ";" not in line]
    return {match[1]: match[2] for match in sorted(plain, key=lambda match: match[1])}


def package(name: str, needs: str) -> Fields:
    found = version(name)
    return {"version": found, "needs": needs, "fits": found is not None and fits(found, needs),
            "untested": untested_mindspore() if name == "mindspore" else ""}


def fits(version: str, needs: str) -> bool:
    """Returns True if a version meets every bound of a requirement.

    Example:
        >>> fits("1.26.4", "<2,>=1.26"), fits("2.0", "<2,>=1.26")
        (True, False)
    """
    have = numbers(version)
    for sign, bound in re.findall(r"(<=|>=|==|!=|<|>)\s*([\w.]+)", needs):
        want = numbers(bound)
        compared = (have > want) - (have < want)
        if compared not in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "==": (0,), "!=": (-1, 1)}[sign]:
            return False
    return True


def compiler(environment: Mapping[str, str]) -> Fields:
    """Returns the C++ compiler that an installation from source would use: that of CXX, else g++, else clang++."""
    wanted = shlex.split(environment.get("CXX", ""))[:1] or ["g++", "clang++"]
    path = next(filter(None, map(shutil.which, wanted)), None)
    if path is None:
        return {"path": None, "version": None, "why": f"no {' and no '.join(wanted)} on PATH"}
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return {"path": path, "version": (text.splitlines() or [""])[0], "why": ""}


# Targets.


def native() -> Fields:
    """Returns the native libraries and the matrix products that the runtime uses."""
    try:
        library, gemm = find_library(), gemm_name()
        planner.load()
    except (ImportError, OSError, AttributeError) as error:
        return {"library": None, "gemm": None, "gemm_library": None, "products": None, "why": str(error)}
    blas = str(find_blas()) if gemm != "own" else None
    return {"library": str(library), "gemm": gemm, "gemm_library": blas, "products": products_name(), "why": ""}


def cpu_target() -> Fields:
    """Returns whether target "cpu" is usable: a small kernel on two virtual ranks must agree with the reference."""
    if not (loaded := native())["library"]:
        return {"usable": False, "why": [f"the native library does not load: {loaded['why']}"]}
    try:
        error = self_test()
    except (hpmoe.LaunchError, hpmoe.VerifyError, OSError) as failure:
        return {"usable": False, "why": [f"a small kernel does not run: {failure}"]}
    why = f"a small MoE-FFN on 2 virtual ranks agrees with the reference, largest error {error:.1e}"
    return {"usable": error <= 1e-5, "why": [why if error <= 1e-5 else why.replace("agrees", "disagrees")]}


def self_test() -> float:
    """Returns the largest difference between the kernel and the reference on a small MoE-FFN."""
    rng = np.random.default_rng(0)
    shapes = [("float32", 4, 8), ("int32", 4, 2), ("float32", 4, 2), ("float32", 1, 8, 6), ("float32", 1, 3, 8)]
    program = hpmoe.trace(hpmoe.moe_ffn, *(hpmoe.ShapeDtypeStruct(tuple(s), dtype) for dtype, *s in shapes),
                          mesh=hpmoe.Mesh(2))
    inputs = [[rng.permuted(np.tile(np.arange(2, dtype=np.int32), (4, 1)), axis=1) if dtype == "int32" else
               rng.standard_normal(s, np.float32) for dtype, *s in shapes] for _ in range(2)]
    flow = hpmoe.tile_partition.apply_to(program, rows=4, cols=4)
    queues = hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(flow), machine=hpmoe.cpu(1))
    kernel = hpmoe.fuse_persistent.apply_to(queues, timeout=10.0)
    pairs = zip(kernel.run(inputs), hpmoe.interpret(program, inputs), strict=True)
    return max(float(np.abs(a - b).max()) for got, want in pairs for a, b in zip(got, want, strict=True))


def ascend_target(environment: Mapping[str, str], devices: Path) -> Fields:
    """Returns the missing requirements of the Ascend kernel, and the NPU, if there is one."""
    missing = run_needs(environment, devices)
    found = [npu_line(find_npu(environment))] if any(devices.glob(NPUS)) else []
    return {"usable": not missing, "why": missing + found}


def npu_line(npu: Npu | str) -> str:
    """Returns a line on the NPU and the machine to plan for, whose blocks must all have a core, as they wait for each other.

    Example:
        >>> npu_line(Npu("Ascend910B3", 20, 40))
        'NPU: Ascend910B3 of 20 AIC and 40 AIV; plan for it with hpmoe.machines.ascend_a2.of_bin("910B3")'
    """
    if isinstance(npu, str):
        return f"NPU: of unknown cores, {npu}"
    name, family = bin_name(npu.chip), "a2" if "910B" in npu.chip else "a3"
    known = name in BINS and BINS[name].num_aic == npu.num_aic
    plan = f'of_bin("{name}")' if known else f"replace(num_aic={npu.num_aic}, num_aiv={npu.num_aiv})"
    return (f"NPU: {npu.chip} of {npu.num_aic} AIC and {npu.num_aiv} AIV; plan for it with "
            f"hpmoe.machines.ascend_{family}.{plan}")


def emulator_target() -> Fields:
    """Returns the report on the Ascend kernel's source on a CPU."""
    try:
        load_emulator()
    except (ImportError, OSError, AttributeError) as error:
        return {"usable": False, "why": [f"the emulator does not load: {error}"]}
    return {"usable": True, "why": ["executes the source of the Ascend kernel on this CPU, to test it"]}


# Text.


def verdict(targets: Mapping[str, Fields]) -> str:
    """Returns one line about the targets.

    Example:
        >>> verdict({"cpu": {"usable": True, "why": []}, "ascend": {"usable": False, "why": ["no CANN toolkit: x"]}})
        'CPU: ready; Ascend: CANN missing'
    """
    words = []
    for name, target in (("CPU", targets["cpu"]), ("Ascend", targets["ascend"])):
        first = target["why"][0].partition(":")[0] if target["why"] else ""
        missing = re.sub(r"^no (.+?)( toolkit| on PATH)?$", r"\1 missing", first)
        words.append(f"{name}: {'ready' if target['usable'] else missing}")
    return "; ".join(words)


def fault_lines(r: Fields) -> list[str]:
    """Returns what stops the CPU target or a package, each with its cause, and where the details are."""
    lines = [f"{name} {p['version'] or 'missing'}: DOES NOT FIT, needs {p['needs']}"
             for name, p in r["packages"].items() if not p["fits"]]
    lines += [f"{name}: {p['untested']}" for name, p in r["packages"].items() if p["untested"]]
    lines += [f"MindSpore's {name}: {fault}" for name, fault in r["private_names"].items() if fault]
    lines += [] if r["targets"]["cpu"]["usable"] else r["targets"]["cpu"]["why"]
    return [*(f"  {line}" for line in lines), "hpmoe doctor --verbose prints versions, libraries, launchers and limits"]


def report_lines(r: Fields) -> list[str]:
    native, compiler, packages = r["native"], r["compiler"], r["packages"]
    rows = [("hpmoe", f"{r['hpmoe']['version'] or 'not installed as a package'}, {r['hpmoe']['folder']}"),
            ("python", f"{r['python']['version']}, {r['python']['executable']}"),
            ("platform", r["platform"]),
            ("cpu", f"{r['cpu']['name']}, {r['cpu']['cores']} cores"),
            ("compiler", f"{compiler['version']}, {compiler['path']}" if compiler["path"] else
             f"none: {compiler['why']}; needed only to install from source"),
            ("native library", native["library"] or f"none: {native['why']}"),
            ("gemm", {None: "none", "own": "own loop: MindSpore's oneDNN does not load"}.get(
                native["gemm"], f"{native['gemm']} of {native['gemm_library']}")),
            ("products", native["products"] or "none")]
    lines = ["", *(f"{name:<16}{text}" for name, text in rows)]
    lines += ["", "packages"]
    lines += [f"  {name:<14}{p['version'] or 'missing':<10}{'ok' if p['fits'] else 'DOES NOT FIT'}, needs {p['needs']}"
              f"{p['untested'] and '; NOT TESTED: ' + p['untested']}"
              for name, p in packages.items()]
    lines += [f"  {name:<14}{found or '-':<10}{'' if found else 'not installed, '}optional"
              for name, found in r["optional"].items()]
    lines += ["", "MindSpore's private names"]
    lines += [f"  {name}: {fault or 'ok'}" for name, fault in r["private_names"].items()]
    lines += ["", "targets"]
    for name, target in r["targets"].items():
        lines.append(f"  {name:<14}{'usable' if target['usable'] else 'NOT USABLE'}")
        lines += [f"    {why}" for why in target["why"]]
    return lines + doctor_ranks.lines(r["ranks"])
