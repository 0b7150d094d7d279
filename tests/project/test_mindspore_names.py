"""MindSpore's private names: one module uses them, and what another MindSpore lacks of them is said by name."""

import ast
import functools
import subprocess
import sys

import pytest
from test_layering import SOURCES

from hpmoe.commands import doctor
from hpmoe.support import mindspore_checks, mindspore_private

OWN = "hpmoe.support.mindspore_private"
CHECKS = "hpmoe.support.mindspore_checks"  # says what each of its checks is of
# What MindSpore documents: modules to import from, or names of `mindspore`, which lead to them.
PUBLIC = {"mindspore", "mindspore.common.initializer", "mindspore.mint", "mindspore.mint.nn", "mindspore.ops"}
# Private attributes of others than MindSpore: Python's, NumPy's, ctypes', absl's, MindFormers'.
OTHERS = {"_inst", "_rand", "_exit", "_getframe", "_replace", "_fields_", "_DummyThread", "_is_owned", "_at_fork_reinit",
          "_get_parameter_shard_plan"}
# What else MindSpore does not document, also where it is a string.
KNOWN = {"__fallback__", "__ms_class__", "is_meta", "side_effect_hidden", "constexpr_prim", "inputs_num", "get_bprop",
         "set_const_prim", "compile_cache", "ms_compile_cache", "_step", "_requires_grad", "_is_leaf", "_make_subclass",
         "_pynative_executor", "_pynative_forward_run", "_Function", "_c_expression"}


@functools.cache
def nodes_of(text):
    """The nodes of a module that define or use names, of its whole syntax tree."""
    kinds = ast.Import, ast.ImportFrom, ast.Attribute, ast.FunctionDef, ast.ClassDef, ast.Constant, ast.Name
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and is_named(node)]


def is_named(node):
    """Leaves out numbers, texts, names that are read, and public attributes."""
    name = getattr(node, "attr", getattr(node, "id", getattr(node, "value", None)))
    if isinstance(node, (ast.Attribute, ast.Constant, ast.Name)):
        return isinstance(name, str) and (name.startswith("_") or name in KNOWN)
    return True


@functools.cache
def defined():
    """Private names that hpmoe defines itself: functions, classes, variables, attributes that are assigned, slots."""
    return set(own_names([text for name, (_, text) in SOURCES.items() if name != OWN]))


def own_names(texts):
    for node in (node for text in texts for node in nodes_of(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def used_in(text):
    """The private names of MindSpore that a module uses: imported, as attributes, or in strings that are names."""
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_mindspore(alias.name) and alias.name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and is_mindspore(node.module or ""):
            yield from (f"{node.module}.{alias.name}" for alias in node.names
                        if node.module not in PUBLIC or alias.name.startswith("_") or alias.name in KNOWN)
        elif isinstance(node, (ast.Attribute, ast.FunctionDef)):
            name = node.attr if isinstance(node, ast.Attribute) else node.name
            if name not in defined() | OTHERS if is_private(name) else name in KNOWN:
                yield name
        elif isinstance(node, ast.Constant) and node.value in KNOWN:
            yield node.value


def is_mindspore(module):
    return module.split(".")[0] == "mindspore"


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def test_one_module_uses_private_names_of_mindspore():
    found = {name: list(used_in(SOURCES[name][1])) for name in sorted(set(SOURCES) - {OWN, CHECKS})}
    assert not any(found.values()), f"give these a function in {OWN}: { {name: f for name, f in found.items() if f} }"


@pytest.mark.parametrize("line, name", [
    ("from mindspore.graph.api import _pynative_executor", "mindspore.graph.api._pynative_executor"),
    ("def f():\n    import mindspore.common.tensor", "mindspore.common.tensor"),
    ("from mindspore.common import np_dtype", "mindspore.common.np_dtype"),
    ("from mindspore import _c_expression", "mindspore._c_expression"),
    ("import mindspore as ms\nms._c_expression.typing", "_c_expression"),
    ("def f(x): return x._requires_grad", "_requires_grad"),
    ("getattr(x, '_is_leaf')", "_is_leaf"),
    ("class T(Tensor):\n    def __fallback__(self): pass", "__fallback__"),
    ("x.add_prim_attr('inputs_num', 2)", "inputs_num"),
])
def test_a_planted_use_is_found(line, name):
    assert list(used_in(line)) == [name]


def test_the_installed_mindspore_is_as_hpmoe_uses_it():
    assert set(mindspore_checks.faults().values()) == {""}


@pytest.mark.parametrize("name, stand_in, fault", [
    ("_jit_context", lambda: None, "jit_context"),
    ("_jit_context", mindspore_private._private("graph.jit_context.no_such"), "jit_context"),
    ("Differentiable", mindspore_private._private("common.no_such"), "_Function"),
    ("_type_id_to_type", lambda number: number, "typing.type_id_to_type"),
    ("_method_call", int, "TensorOverloadCall"),
    ("without_fallback", mindspore_private._private("no_such"), "NoFallbackGuard"),
    ("bfloat16", float, "np_dtypes.bfloat16"),
    ("STEP", "no_such", "Generator: "),
    ("FALLBACK", "__no_such__", "TensorOverloadCall"),
    ("gradient_depth", lambda: 0, "_pynative_forward_run"),
    ("is_computed", lambda tensor: False, "Tensor: _requires_grad"),
    ("forgetting_graph", lambda: lambda: None, "constexpr_prim"),
    ("graph_takes_gradient", lambda: False, "constexpr_prim"),
])
def test_a_name_that_behaves_otherwise_is_reported(monkeypatch, name, stand_in, fault):
    monkeypatch.setattr(mindspore_private, name, stand_in)
    names = next(names for names in mindspore_checks.CHECKS if fault in names)
    loses, check = mindspore_checks.CHECKS[names]
    assert mindspore_checks._fault(loses, check).startswith(f"{loses} would not work: ")


def test_doctor_prints_each(monkeypatch, capsys):
    monkeypatch.setattr(mindspore_private, "_jit_context", mindspore_private._private("graph.jit_context.no_such"))
    report = doctor.diagnosis()
    lines = doctor.report_lines(report)
    assert not report["ok"] and "  _Function: ok" in lines
    assert any(line.startswith("  jit_context: the refusal of ms.jit(capture_mode=\"trace\") would not work: "
                               "ImportError: MindSpore 2.10.0 has no mindspore.graph.jit_context.no_such, which ")
               for line in lines)


PLANTED = """
import mindspore.graph.jit_context
import mindspore.common._grad_function
del mindspore.graph.jit_context.jit_context, mindspore.common._grad_function._Function
del mindspore._c_expression.TensorOverloadCall
import hpmoe, numpy as np
from hpmoe.support.mindspore_checks import faults
print([names for names, fault in faults().items() if fault])
try:
    hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(lambda x: x * 2)))(mindspore.Tensor([[1.0]]))
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_mindspore_without_some_names():
    """hpmoe is imported; each missing name is reported, and what uses one raises it."""
    done = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True, timeout=120)
    found, error = done.stdout.splitlines()[-2:]
    names = ("TensorOverloadCall", "'_Function'", "'jit_context'", "np_dtypes")
    assert [part in found for part in names] == [True, True, True, False], done
    assert error.startswith("MindSpore 2.10.0 has no mindspore.")
    assert error.endswith(", which hpmoe uses; hpmoe doctor prints what does not work without it")
