"""Imports go one way: a module imports from its own layer and from earlier ones."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"hpmoe": "hpmoe", "hpmoe.transforms": "transforms", "hpmoe.kernels": "kernels"}
# Modules and packages below hpmoe, the lowest layer first; `__init__` is hpmoe itself.
LAYERS = (
    "errors dtypes locks intervals interrupts progress npu_bins",
    "capacity placement balance",
    "host avals program program_text routing slots machine kept_calibration workload",
    "primitives",
    "token_rows",
    "padding",
    "evaluate vjp tracing",
    "tile_ops route_plan",
    "taskflow taskflow_text limits tiling layout costs native targets",
    "ordering",
    "proofs task_bodies interpret timelines",
    "calling",
    "transforms moe",
    "kernels",
    "tuning",
    "__init__",
    "peers calibration",
    "commands",
    "cli",
)
# What a module may import where its layer alone would allow it more.
ONLY = {"hpmoe.moe": ("primitives", "errors")}


def module_paths():
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(module_paths())


def imported_modules(name, path, source):
    """The hpmoe modules that `source` imports anywhere, also inside functions."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            dotted = [f"{base}.{alias.name}" for alias in node.names]
            found = [full if full in MODULES else base for full in dotted]
        else:
            continue
        yield from (module for module in found if module.split(".")[0] == "hpmoe")


def entry_of(name):
    """The first part below hpmoe: the entry of a module or of the package that holds it."""
    return name.split(".")[1] if "." in name else "__init__"


def layer_of(name):
    layers = [depth for depth, entries in enumerate(LAYERS) if entry_of(name) in entries.split()]
    assert len(layers) == 1, f"{name} belongs to layers {layers}: give it exactly one place in LAYERS"
    return layers[0]


def assert_layering(name, path, source):
    for imported in imported_modules(name, path, source):
        assert layer_of(imported) <= layer_of(name), f"{name} imports {imported}, which comes later in LAYERS"
        allowed = ONLY.get(name, (entry_of(imported),))
        assert entry_of(imported) in allowed, f"{name} imports {imported}, allowed: {allowed}"


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    assert_layering(name, MODULES[name], MODULES[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name, source",
    [
        ("hpmoe.transforms.fuse_persistent", "def f():\n    from hpmoe.kernels import build_native"),
        ("hpmoe.program", "from .tracing import trace"),
        ("hpmoe.moe", "import hpmoe.taskflow"),
        ("hpmoe.unheard_of", "import hpmoe.program"),
    ],
)
def test_import_against_the_layers_is_reported(name, source):
    with pytest.raises(AssertionError, match=name):
        assert_layering(name, Path("module.py"), source)
