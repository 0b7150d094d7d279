"""hpmoe build: compiles the kernel of a target that pip does not compile."""

from __future__ import annotations

from absl import flags

from hpmoe.commands import options
from hpmoe.kernels.ascendc import build as ascend_build

SUMMARY = "compiles the Ascend kernel for MindSpore on a machine with CANN; elsewhere, says what is missing"
NOTES = """\
  hpmoe build --target=ascend --bodies=moe_ffn
pip compiles the kernel of the cpu target and the emulator of an NPU. The Ascend kernel is type-checked and run
functionally by the emulator; no device compiler has compiled it and no NPU has run it. Exits with 1 if something is
missing or the compilation fails."""


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "target", "ascend", "what to compile", ("ascend",))
    options.define_choice(values, "chip", "2201", "2201 for A2 and A3, 3510 for a 950", ("2201", "3510"))
    options.define_choice(values, "bodies", "all", "moe_ffn: the operations of a MoE-FFN only, for first steps",
                          ("all", "moe_ffn"))
    options.define_choice(values, "kernel_type", "mix", "macro: KERNEL_TASK_TYPE_DEFAULT instead of __mix__(1, 2)",
                          ("mix", "macro"))


def run(o: flags.FlagValues) -> int:
    missing = ascend_build.build(ascend_build.KernelOptions(o.chip, o.bodies, o.kernel_type))
    built = None if missing else str(ascend_build.compiled_path())
    text = "\n  ".join(["hpmoe build --target=ascend: cannot be built here", *missing]) if missing else f"built {built}"
    return options.report(o, {"target": o.target, "library": built, "missing": missing}, text, not missing)
