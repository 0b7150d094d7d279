"""Some test files run in a second process beside the first, so that the whole suite takes two cores.

Their tests stay in every count and come last: in place of running one, the first process waits for the reports that the second
has written, and passes them on as they are. What a test prints outside of its capture would be lost, so files that do so are
not among them.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

FILES = ("test_accumulate_grads.py", "test_bench.py", "test_buffer_reuse.py", "test_capacity.py", "test_cli.py",
         "test_deduplicate_rows.py", "test_dependencies.py", "test_dtypes.py", "test_examples.py", "test_graph_mode.py",
         "test_moe_oracle.py", "test_native_bodies.py", "test_native_dtypes.py", "test_program_variants.py")
FEWEST = 100  # tests on either side for which another start pays
PASSED_ON = ("--mutants", "--mutants-seed")


class Reporting:
    """In the second process: runs the tests that are asked for, and writes each report as a line of JSON."""

    def __init__(self, config, folder):
        self.config, self.parent = config, os.getppid()
        self.wanted = set(json.loads(Path(folder, "wanted.json").read_text()))
        self.out = open(Path(folder, "reports"), "a", encoding="utf-8")  # noqa: SIM115, until the process ends

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_runtest_logreport(self, report):
        self.out.write(json.dumps(self.config.hook.pytest_report_to_serializable(config=self.config, report=report)) + "\n")
        self.out.flush()
        if os.getppid() != self.parent:
            pytest.exit("the first process is gone")


class Second:
    """In the first process: starts the second, and passes on its reports when their tests are due."""

    def __init__(self, config, items):
        self.config, self.reports, self.ended = config, {item.nodeid: [] for item in items}, set()
        self.folder = tempfile.TemporaryDirectory(prefix="hpmoe_tests_")
        Path(self.folder.name, "wanted.json").write_text(json.dumps(list(self.reports)))
        Path(self.folder.name, "reports").touch()
        self.lines = open(Path(self.folder.name, "reports"), encoding="utf-8")  # noqa: SIM115
        self.log = open(Path(self.folder.name, "log"), "w+", encoding="utf-8")  # noqa: SIM115
        flags = [name for name in ("--timings", "--update-golden") if config.getoption(name)]
        flags += [f"{name}={config.getoption(name)}" for name in PASSED_ON]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--second-process={self.folder.name}", *flags,
             *sorted({str(item.path) for item in items})], cwd=config.rootpath, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=subprocess.STDOUT, start_new_session=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if item.nodeid not in self.reports:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._wait_for(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _wait_for(self, item):
        is_over = False
        while item.nodeid not in self.ended and not is_over:
            is_over = self.process.poll() is not None  # what it wrote before that is still to be read
            self._read()
            time.sleep(0 if is_over or item.nodeid in self.ended else 0.05)
        if item.nodeid not in self.ended:
            self.log.seek(0)
            words = f"the second process ended with {self.process.returncode} before this test did:\n{self.log.read()[-4000:]}"
            return [pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")]
        return self.reports[item.nodeid]

    def _read(self):
        while line := self.lines.readline():
            while not line.endswith("\n"):
                line += self.lines.readline()
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=json.loads(line))
            self.reports[report.nodeid].append(report)
            if report.when == "teardown":
                self.ended.add(report.nodeid)

    def pytest_sessionfinish(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.process.kill()
        self.process.wait()
        for file in (self.lines, self.log):
            file.close()
        self.folder.cleanup()


def start(session):
    """Starts a second process for its share of the collected tests, where there are enough tests and cores for it."""
    option = session.config.option
    if option.collectonly or option.usepdb or option.capture == "no" or len(os.sched_getaffinity(0)) < 2:
        return
    apart = [item.path.name in FILES for item in session.items]
    shares = [[item for item, is_apart in zip(session.items, apart, strict=True) if is_apart == which] for which in (False, True)]
    if min(map(len, shares)) >= FEWEST:
        session.items[:] = [*shares[0], *shares[1]]
        session.config.pluginmanager.register(Second(session.config, shares[1]))
