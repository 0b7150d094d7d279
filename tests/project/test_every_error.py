"""Every error a user can meet, provoked and held word by word; a raising line that no case reaches must say why."""

import ast
import re
import sys
from pathlib import Path

import error_cases_balance  # noqa: F401  adds its cases
import error_cases_beginners  # noqa: F401  adds its cases
import error_cases_checkpoints  # noqa: F401  adds its cases
import error_cases_inputs  # noqa: F401  adds its cases
import error_cases_mindformers  # noqa: F401  adds its cases
import error_cases_nn  # noqa: F401  adds its cases
import error_cases_options  # noqa: F401  adds its cases
import error_cases_quantised  # noqa: F401  adds its cases
import error_cases_router  # noqa: F401  adds its cases
import error_cases_shards  # noqa: F401  adds its cases
import error_cases_testing  # noqa: F401  adds its cases
import error_cases_tokens  # noqa: F401  adds its cases
import error_cases_transforms  # noqa: F401  adds its cases
import pytest
from error_cases_ascend import CASES

from hpmoe.tracing import errors as tracing_errors

ROOT = Path(__file__).parents[2]
RAISING = {"check_argument", "refuse", "not_traceable", "call_user", "check_flag"}
# (file, words of the raising line): why no user program among the cases reaches it.
NOT_REACHED = {
    ("hpmoe/primitives/expert.py", "expert_bias"): "tracing makes it of a gather that fits",
    ("hpmoe/primitives/replicate.py", ""): "replicate_experts and its gradient make them of operands that fit",
    ("hpmoe/primitives/expert.py", "\"replicas\""): "replicate_experts makes them of operands that fit",
    ("hpmoe/primitives/quantized_matmul.py", "\"replicas of the scale"): "replicate_experts makes them of operands that fit",
    ("hpmoe/primitives/grouped_weight_grad.py", "returned gradients"): "made by a gradient, of operands that fit",
    ("hpmoe/tracing/entry.py", "recorder.pending"): "raises again what a case did",
    ("hpmoe/tracing/recorder.py", "did not report"): "guards against MindSpore calls that report nothing; none is known",
    ("hpmoe/tracing/rules_matmul.py", "ops.grouped_matmul"): "no MindSpore of this version has it on a CPU",
    ("hpmoe/tracing/rules_norms.py", "softmax over several"): "MindSpore refuses it first",
    ("hpmoe/tracing/tracer.py", "AttributeError"): "Python's protocol for a missing attribute",
    ("hpmoe/tracing/pynative.py", "AttributeError"): "Python's protocol for a missing attribute",
    ("hpmoe/tracing/pynative.py", "raise interrupt"): "Ctrl-C while a trace ends; test_tracing_errors.py",
    ("hpmoe/support/versions.py", "source folder"): "Python started in a clone; test_packaging.py",
    ("kernels/token_rows.py", "no memory to move"): "raised where the system has no memory left",
    ("kernels/ascendc/rules.py", "rows of mxfp8"): "of a 950; test_ascend_950.py",
    ("kernels/ascendc/rules.py", "its weight of mxfp8"): "of a 950; test_ascend_950.py",
    ("kernels/ascendc/rules.py", "its operand dtypes"): "both operands of a product have one dtype",
    ("kernels/ascendc/rules.py", "its result"): "a product has the dtype of its operands, or of a main gradient",
    ("kernels/ascendc/rules.py", "the dtype of"): "what copies give back has the dtype of their products, a main gradient "
                                                 "float32",
    ("kernels/ascendc/rules.py", "its main gradient"): "a call adds in place; guards against other callers of the kernel",
    ("kernels/ascendc/build.py", ""): "compilers that fail; test_doctor.py",
    ("kernels/ascendc/heap.py", "the size of MindSpore's world"): "needs processes that MindSpore starts",
    ("kernels/ascendc/emulator/target.py", "breaks a rule"): "the kernel keeps them; test_ascend_mutants.py",
    ("kernels/ascendc/emulator/target.py", "NOT_SHARED"): "what ranks write to lies in their heaps; guards other "
                                                       "callers of the kernel",
    ("hpmoe/runtime/graph_mode.py", "of unknown type"): "test_graph_mode.py, with the other two that say so",
    ("hpmoe/support/array_bytes.py", ""): "what no rank sends; test_array_bytes.py",
    ("hpmoe/tile_ops/terms.py", ""): "a rule of a tile operation that branches; test_rule_terms.py",
    ("hpmoe/primitives/outside_graphs.py", ""): "in a graph that MindSpore compiles; test_outside_graphs.py",
    ("hpmoe/runtime/running.py", "capture_mode"): "test_graph_mode.py, where MindSpore records calls",
    ("hpmoe/interpreters/interpret_taskflow.py", "cannot run"): "guards the interpreter's own books",
    ("hpmoe/verification/regions.py", "_Fault"): "verify raises it as a VerifyError",
    ("hpmoe/ir/avals.py", "is no route"): "what only a broken program has; its primitives' shape rules refuse it",
    ("hpmoe/support/known.py", ""): "what only a broken taskflow has; verify raises it as a VerifyError",
    ("hpmoe/support/mindspore_", ""): "a MindSpore that lacks a name; test_mindspore_names.py",
    ("hpmoe/support/", "native library"): "an installation without it; test_packaging.py",
    ("hpmoe/planner/", "not enough memory"): "test_planner.py",
    ("hpmoe/planner/", "ValueError(text)"): "verify names such tables before; test_planner.py",
    ("hpmoe/support/host.py", "no folder to keep files in"): "a user without a home; test_calibrate.py",
    ("hpmoe/support/cached_files.py", ""): "depends on what lies in the user's cache; test_cached_files.py",
    ("hpmoe/nn/safetensors.py", "while it was read"): "another process writes; test_safetensors_headers.py",
    ("hpmoe/ir/stages.py", "AttributeError"): "Python's protocol for a missing attribute; test_router_inside.py",
    ("hpmoe/runtime/staged", "attribute_error"): "Python's protocol for a missing attribute; test_router_inside.py",
    ("hpmoe/runtime/spmd.py", "attribute_error"): "Python's protocol for a missing attribute; test_router_inside.py",
    ("hpmoe/ir/plain.py", ""): "of kept plans; test_taskflow_bytes.py",
    ("hpmoe/ir/taskflow_bytes.py", ""): "of kept plans; test_taskflow_bytes.py",
    ("hpmoe/runtime/exchanged.py", ""): "several processes; tests/ranks",
    ("hpmoe/runtime/plan_key.py", ""): "a warning says it; test_cached_plans.py",
    ("hpmoe/runtime/cached_plans.py", ""): "depends on what lies in the user's cache; test_cached_plans.py",
    ("hpmoe/machines/cached_calibration.py", ""): "depends on what lies in the user's cache; test_calibrate.py",
    ("hpmoe/bring_up/", ""): "a kernel that is wrong; test_ascend_check.py",
    ("hpmoe/commands/ascend_check.py", ""): "of the command; test_ascend_check.py",
    ("hpmoe/commands/calibrate.py", "UsageError"): "depends on what lies in the user's cache; test_calibrate.py",
    ("hpmoe/calibration/profile", ""): "of files; test_calibrate_profile.py",
    ("hpmoe/commands/calibrate.py", "check_flag"): "of the command; test_calibrate_profile.py",
    ("hpmoe/commands/machine.py", "ValueError"): "test_machine_files.py",
    ("hpmoe/commands/model_layouts.py", ""): "of the command; test_model_layouts.py, test_cli.py",
    ("hpmoe/commands/layer_flags.py", "direction"): "of the command; test_cli.py",
    ("hpmoe/commands/show.py", "check_flag"): "of the command; test_cli.py",
    ("hpmoe/commands/tune.py", "row_capacity"): "of the command; test_cli.py",
    ("hpmoe/commands/routing_flag.py", ""): "of the command; test_simulate_command.py, test_cli.py",
    ("hpmoe/routing/recorded_loads.py", "IDS"): "of files; test_model_layouts.py",
    ("hpmoe/machines/machine_files.py", ""): "of files; test_machine_files.py",
    ("hpmoe/commands/memory.py", "the process of"): "test_memory_report.py",
    ("hpmoe/commands/options.py", "where matplotlib is not"): "an installation without it; test_smoke.py",
    ("hpmoe/testing/__init__.py", "ImportError"): "an installation without chex or hypothesis; test_inputs.py",
    ("hpmoe/mindformers/grouped_mlp.py", ""): "in MindFormers' modules; tests/reference/test_mindformers.py",
    ("hpmoe/ranks/", ""): "several processes; tests/ranks",
    ("hpmoe/commands/launch.py", ""): "of a command line; tests/ranks/test_starting.py",
    ("kernels/__init__.py", "ImportError"): "a source folder imported by its bare name; test_layering.py",
    ("transforms/__init__.py", "ImportError"): "a source folder imported by its bare name; test_layering.py",
    ("hpmoe/primitives/tiler.py", "come over two routes"): "no transform has relays pass on a route twice",
    ("kernels/build_native.py", ""): "an installation without a compiler; test_packaging.py",
    ("kernels/schema/bodies.py", ""): "of whoever adds an operation; test_tile_ops.py",
    ("kernels/buffers.py", ""): "a call brings what its function was traced for; test_faults.py runs a kernel itself",
    ("kernels/cpu/launch.py", ""): "launch gets what Executable packed; test_native_runtime.py calls it itself",
    ("kernels/link", ""): "several processes; tests/ranks",
    ("kernels/host_launch.py", "link.size"): "a world has the ranks of its kernels",
    ("kernels/simulate.py", "MOST_TASKS"): "of tens of millions of tasks; test_simulate.py",
    ("kernels/native.py", "use_blas"): "a benchmark alone loads a library by name; test_native_bodies.py",
    ("kernels/packing.py", "pack:"): "verify names such tables before; test_packing.py",
    ("hpmoe/runtime/targets.py", "run_rank"): "calls ask `reaches` before; test_targets.py",
    ("hpmoe/runtime/bodies.py", ""): "no transform makes such an operation; test_every_body.py",
    ("hpmoe/tile_ops/named.py", ""): "a definition made twice, when the library is imported; test_tile_ops.py",
    ("kernels/ascendc/rules.py", "Code.BAD_IMAGE"): "what is packed is sound; test_every_body.py",
    ("kernels/ascendc/heap.py", "executable.name"): "an NPU that a kernel does not fit; test_binding_hazards.py",
    ("kernels/ascendc/device.py", ""): "what CANN says of an NPU; test_doctor.py",
    ("kernels/image.py", "pack_image"): "test_packing.py: sections of other dtypes",
}


def outcome(call):
    """The exception of a case; None where it raises none."""
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.fixture(scope="module")
def provoked():
    """(name -> exception, the (file, line) that explain() worded a MindSpore error at)."""
    worded = set()

    def noted(*args):
        frame = sys._getframe(1)
        worded.add((frame.f_code.co_filename, frame.f_lineno))
        return not_traceable(*args)

    not_traceable = tracing_errors.not_traceable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing_errors, "not_traceable", noted)
        return {name: outcome(call) for name, call in CASES.items()}, worded


def shown(error):
    """The text of an error, with the user's lines as one name and number."""
    return f"{type(error).__name__}: " + re.sub(r"[\w./-]*\w+\.py:\d+", "user.py:1", str(error))


def test_every_case_raises(provoked):
    assert [name for name, error in provoked[0].items() if error is None] == []


def test_texts(provoked, golden):
    errors, _ = provoked
    text = "\n\n".join(f"[{name}]\n{shown(errors[name])}" for name in sorted(errors)) + "\n"
    assert text == golden("errors.txt", text), "if meant so, run pytest --update-golden"


def test_texts_are_short_and_show_no_address(provoked):
    for name, error in provoked[0].items():
        lines = str(error).splitlines()
        assert not re.search(r"\b(at )?0x[0-9a-f]{6}", str(error)), name
        assert len(lines) <= 12 and len(lines[0]) <= 330, f"{name}: {error}"


def sites():
    """(file, first line, last line, source) of each statement that raises and each call that may."""
    for path in sorted(p for folder in ("hpmoe", "transforms", "kernels") for p in (ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)) if any(w in source for w in (*RAISING, "_fail", "raise ")) else ():
            called = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            is_failing = called == "_fail" and isinstance(node.args[0], ast.Name)
            if called in RAISING or is_failing or (isinstance(node, ast.Raise) and node.exc is not None):
                yield path, node.lineno, node.end_lineno, " ".join(s.strip() for s in lines[node.lineno - 1:node.end_lineno])


def reached(errors):
    """(file, line) of every frame that the errors, and what they were raised from, went through."""
    out, left = set(), list(errors)
    while left:
        error = left.pop()
        left += [e for e in (error.__cause__, error.__context__) if e is not None]
        trace = error.__traceback__
        while trace is not None:
            out.add((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
    return out


def test_every_raising_line_is_reached_or_says_why(provoked):
    errors, worded = provoked
    hits = worded | reached(errors.values())
    missed = [(path.relative_to(ROOT).as_posix(), line, source) for path, line, last, source in sites()
              if not any((str(path), at) in hits for at in range(line, last + 1))]
    excused = {key: [m for m in missed if m[0].startswith(key[0]) and key[1] in m[2]] for key in NOT_REACHED}
    left = [m for m in missed if not any(m in group for group in excused.values())]
    assert not left, "\n".join(["add a case to error_cases.py, or a reason to NOT_REACHED:", *map(str, left)])
    assert [key for key, group in excused.items() if not group] == [], "reached by now; take them out of NOT_REACHED"
