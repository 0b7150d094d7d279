"""Settings and fixtures of every test; pyproject.toml has the warnings policy."""

import os
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import mindspore
import needs
import pytest

from hpmoe.kernels import use_amx, use_blas
from hpmoe.kernels.native import find_blas

GOLDEN = Path(__file__).parent / "golden"

# Timings of a shared machine are no property of the code.
hypothesis.settings.register_profile("hpmoe", deadline=None, print_blob=True)
hypothesis.settings.load_profile("hpmoe")

# JAX runs each oracle once: what it compiles need not be fast. Kernels that are emitted one by one compile in half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
                      "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# A shell starts what runs in the background with Ctrl-C ignored, and so would be all that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Asynchronous dispatch costs milliseconds an operator on few cores, and reports an error far from its cause.
mindspore.runtime.launch_blocking()


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ instead of comparing")
    parser.addoption("--timings", action="store_true", help="also run tests that measure, which need an idle machine")
    parser.addoption("--examples", type=int, default=1,
                     help="how many times as many examples laws are tried on, other ones each time")
    parser.addoption("--mutants", type=int, default=300, help="how many mutants the verifier is tried on")
    parser.addoption("--mutants-seed", type=int, default=0, help="which ones")


def pytest_collection_modifyitems(config, items):
    """Draws new examples if a run has more than the default number; ids are equal in every process."""
    assert not [item.nodeid for item in items if " at 0x" in item.nodeid], "a test id with an address; give it one by ids="
    times = config.getoption("--examples")
    laws = {item.obj for item in items if hasattr(item.obj, "_hypothesis_internal_use_settings")} if times > 1 else ()
    for law in laws:
        few = law._hypothesis_internal_use_settings
        law._hypothesis_internal_use_settings = hypothesis.settings(
            few, max_examples=few.max_examples * times, derandomize=False, database=None)


def pytest_xdist_auto_num_workers(config):
    """A whole run takes two processes, as kernels have threads of their own; for a few files another start does not pay."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and "not slow" in config.option.markexpr
    return min(2, len(os.sched_getaffinity(0))) if is_whole else 0


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, each reason once."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture
def golden(request):
    """`golden(name, text)` is the text stored in tests/golden/<name>; with --update-golden it stores `text` there first."""

    def stored(name, text):
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden and read what it wrote"
        return path.read_text(encoding="utf-8")

    return stored


@pytest.fixture
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    """Gives MindSpore a folder for reports of graphs that do not compile, and for rewritten networks."""
    monkeypatch.chdir(tmp_path)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


BUILDS = []


def pytest_collection_finish(session):
    """The operator of test_mindspore_binding.py is compiled while other tests run, by one of several pytest processes."""
    is_needed = any(item.path.name == "test_mindspore_binding.py" for item in session.items)
    is_first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if is_needed and is_first and not session.config.option.collectonly:
        from binding_helpers import start_build
        BUILDS.append(start_build())


def pytest_sessionfinish(session):
    for process in filter(None, BUILDS):
        process.terminate()


@pytest.fixture(scope="session")
def binding_build():
    return BUILDS[0] if BUILDS else None


@pytest.fixture
def pretended_mindspore(monkeypatch, tmp_path):
    """`pretended_mindspore(version)` makes it the installed version of MindSpore, and returns the folder that says so."""

    def pretend(version):
        folder = tmp_path / "mindspore.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mindspore\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    return pretend


@pytest.fixture(params=["own", "dnnl_sgemm", "amx", "amx, core shared"])
def blas(request):
    """Every product comes from our own loops, then from the bundled library, then from the core's matrix units, in both
    ways."""
    if request.param == "dnnl_sgemm":
        needs.has_onednn()
    found = use_amx(request.param.startswith("amx"), request.param == "amx, core shared")
    if request.param.startswith("amx"):
        needs.has_amx(found)
    use_blas(None if request.param == "own" else find_blas())
    yield request.param
    use_blas(find_blas())
    use_amx(True)
