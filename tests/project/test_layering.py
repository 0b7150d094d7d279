"""Imports go one way, wherever they stand: from a layer to itself and to earlier ones, and never in a circle."""

import ast
import functools
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"hpmoe": "hpmoe", "hpmoe.transforms": "transforms", "hpmoe.kernels": "kernels"}
# Modules and packages below hpmoe, the lowest layer first; `__init__` is hpmoe itself.
LAYERS = (
    "support",
    "routing machines",
    "ranks",
    "tile_ops",
    "ir",
    "primitives",
    "autodiff tracing",
    "planner",
    "tiling",
    "costs",
    "scheduling timelines",
    "interpreters verification",
    "runtime",
    "transforms moe router",
    "kernels",
    "tuning balance token_ops",
    "rewriting",
    "testing",
    "nn",
    "mindformers",
    "__init__",
    "calibration bring_up",
    "commands",
    "cli",
    "__main__",
)
# What a module may import where its layer alone would allow it more.
ONLY = {"hpmoe.moe": ("primitives", "support")}


def module_paths():
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(module_paths())
SOURCES = {name: (path, path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
LOADERS = {"import_module", "__import__"}


def imports_of(name, path, source):
    """The hpmoe modules that `source` imports, wherever the import stands."""
    return [dotted for dotted in all_imports(name, path, source) if dotted.split(".")[0] == "hpmoe"]


@functools.cache
def all_imports(name, path, source):
    """The dotted names of all modules that `source` imports."""
    tree = ast.parse(source)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    loaders, nodes = (), statements(tree)
    if any(loader in source for loader in LOADERS):
        loaders, nodes = names_of_import_module(tree), ast.walk(tree)
    return [dotted for node in nodes for dotted in imported(node, package, loaders, name)]


def statements(tree):
    """The statements of a syntax tree, also inside others; expressions, which are most of it, are left out."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, field, ())


def imported(node, package, loaders, name):
    """The modules that a node of a syntax tree imports, if it is an import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = resolve_name("." * node.level + (node.module or ""), package)
        dotted = [f"{base}.{alias.name}" for alias in node.names]
        return [full if full in MODULES else base for full in dotted]
    called = getattr(node.func, "id", getattr(node.func, "attr", None)) if isinstance(node, ast.Call) else None
    if called not in loaders:
        return []
    if is_of_folder(node, package):
        return [module for module in MODULES if module.rpartition(".")[0] == package and module != name]
    literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    assert isinstance(literal, str), f"{name} line {node.lineno}: {called} of a name that is no literal hides an import"
    return [resolve_name(literal, package)]


def is_of_folder(call, package):
    """Returns whether a call imports f"{package}.{name}", which may be any module of the caller's own package."""
    if not call.args or not isinstance(call.args[0], ast.JoinedStr):
        return False
    first, *rest = call.args[0].values
    return isinstance(first, ast.Constant) and first.value == f"{package}." and len(rest) == 1


def names_of_import_module(tree):
    """Returns the names that a module has for functions that import a module by name."""
    aliases = [alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
               for alias in node.names if alias.name in LOADERS and alias.asname]
    return {*LOADERS, *aliases}


def reached_from(graph, name):
    """All modules that imports lead to from one."""
    reached, left = set(), [name]
    while left:
        new = graph[left.pop()] - reached
        reached |= new
        left += new
    return reached


def circles(graph):
    """Lists of modules that all reach each other: the strongly connected components."""
    reached = {name: reached_from(graph, name) for name in graph}
    found = {tuple(sorted(m for m in reached[name] if name in reached[m])) for name in graph if name in reached[name]}
    return [list(circle) for circle in sorted(found)]


def graph_of(sources):
    """The other modules that each module imports: {name: set of names}, from {name: (path, source)}."""
    return {name: {m for m in imports_of(name, path, source) if m in sources}
            for name, (path, source) in sources.items()}


def entry_of(name):
    """The first part below hpmoe: the entry of a module or of the package that holds it."""
    return name.split(".")[1] if "." in name else "__init__"


def layer_of(name):
    layers = [depth for depth, entries in enumerate(LAYERS) if entry_of(name) in entries.split()]
    assert len(layers) == 1, f"{name} belongs to layers {layers}: give it exactly one place in LAYERS"
    return layers[0]


def assert_layering(name, path, source):
    for module in imports_of(name, path, source):
        assert layer_of(module) <= layer_of(name), f"{name} imports {module}, which comes later in LAYERS"
        allowed = ONLY.get(name, (entry_of(module),))
        assert entry_of(module) in allowed, f"{name} imports {module}, allowed: {allowed}"


def test_imports_go_one_way():
    for name, source in SOURCES.items():
        assert_layering(name, *source)


def assert_no_benchmark(name, path, source):
    benchmarks = {path.stem for path in (ROOT / "examples" / "benchmarks").glob("*.py")}
    found = benchmarks & {dotted.split(".")[0] for dotted in all_imports(name, path, source)}
    assert not found, f"{name} imports {found} of examples/benchmarks"


def test_the_package_imports_no_benchmark():
    for name, source in SOURCES.items():
        assert_no_benchmark(name, *source)
    for source in ("import planning", "def f():\n    from planning import main"):
        with pytest.raises(AssertionError, match="imports {'planning'}"):
            assert_no_benchmark("hpmoe.moe", Path("module.py"), source)


@pytest.mark.parametrize(
    "name, source",
    [
        ("hpmoe.transforms.fuse_persistent", "def f():\n    from hpmoe.kernels import build_native"),
        ("hpmoe.ir.program", "from ..tracing import trace"),
        ("hpmoe.moe", "import hpmoe.ir.taskflow"),
        ("hpmoe.unheard_of", "import hpmoe.ir.program"),
    ],
)
def test_import_against_the_layers_is_reported(name, source):
    with pytest.raises(AssertionError, match=name):
        assert_layering(name, Path("module.py"), source)


def test_no_modules_import_each_other_in_a_circle():
    assert circles(graph_of(SOURCES)) == []


# Below `hpmoe.tuning.trials`, which imports `hpmoe.tuning.plan`, the import of the former that closes a circle.
PLANTED = {
    "at the top": "from hpmoe.tuning.trials import Trial",
    "of the module": "import hpmoe.tuning.trials",
    "of its package": "from hpmoe.tuning import trials",
    "relative": "from .trials import Trial",
    "relative, of the package": "from . import trials",
    "in a function": "def f():\n    from hpmoe.tuning.trials import Trial",
    "in a method": "class C:\n    def run(self):\n        from hpmoe.tuning import trials",
    "for type checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hpmoe.tuning.trials import Trial",
    "where it may fail": "try:\n    from hpmoe.tuning.trials import Trial\nexcept ImportError:\n    pass",
    "by importlib": "import importlib\nimportlib.import_module('hpmoe.tuning.trials')",
    "of all its folder": "import importlib\nfor name in NAMES:\n    importlib.import_module(f'hpmoe.tuning.{name}')",
    "by its function": "from importlib import import_module\ndef f(): return import_module('hpmoe.tuning.trials')",
    "by another name": "from importlib import import_module as load\nload('hpmoe.tuning.trials')",
    "by a relative name": "import importlib\nimportlib.import_module('.trials', __package__)",
    "by __import__": "__import__('hpmoe.tuning.trials')",
    "on an attribute": "def __getattr__(name):\n    from hpmoe.tuning import trials\n    return getattr(trials, name)",
    "to print": "class C:\n    def __str__(self):\n        from . import trials",
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_planted_circle_is_found(where):
    name, other = "hpmoe.tuning.plan", "hpmoe.tuning.trials"
    sources = {name: (MODULES[name], PLANTED[where]), other: (MODULES[other], "import hpmoe.tuning.plan")}
    assert circles(graph_of(sources)) == [sorted(sources)]


def test_a_circle_through_the_whole_package_is_found():
    name = "hpmoe.support.errors"
    sources = {**SOURCES, name: (MODULES[name], "def f():\n    from hpmoe.cli import main")}
    assert [name in circle and "hpmoe.cli" in circle for circle in circles(graph_of(sources))] == [True]


def test_a_module_that_imports_itself_is_a_circle():
    name = "hpmoe.support.errors"
    assert circles(graph_of({name: (MODULES[name], "import hpmoe.support.errors")})) == [[name]]


def test_an_import_by_a_name_made_at_run_time_is_refused():
    with pytest.raises(AssertionError, match=r"hpmoe\.support\.errors line 2: import_module of a name that is no literal"):
        list(imports_of("hpmoe.support.errors", MODULES["hpmoe.support.errors"],
                        "import importlib\nimportlib.import_module(f'hpmoe.{x}')"))
