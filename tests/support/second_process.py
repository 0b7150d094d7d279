"""A whole run takes two processes: the second runs test files from the last one on, the first from the first one on.

A file is of whoever begins it, which a file in a common folder says. Where they meet, the first goes on with the reports
that the second has written, as if it had run these tests itself: they stay in every count.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

# In the first process: what these print outside of their capture would be lost, and the operator is compiled for one.
OWN = ("test_ascend_mutants.py", "test_mutations.py", "test_mindspore_binding.py")
# Last, so that neither waits long where they meet: the files that take longest.
LONG = ("test_buffer_reuse.py", "test_examples.py", "test_dtypes.py", "test_save_for_backward.py", "test_graph_mode.py",
        "test_laws.py",
        "test_moe_oracle.py", "test_bench.py", "test_program_variants.py")
FEWEST = 100  # tests beside those of the largest file for which another start pays
PASSED_ON = ("--examples", "--mutants", "--mutants-seed")


class Claims:
    """Whether a test's file is of this process: that of who asks first."""

    def __init__(self, folder):
        self.folder, self.answers = Path(folder), {}

    def __call__(self, item):
        name = item.path.name
        if name not in self.answers:
            try:
                (self.folder / f"{name}.claimed").touch(exist_ok=False)
                self.answers[name] = True
            except FileExistsError:
                self.answers[name] = False
        return self.answers[name]


class Reporting:
    """In the second process: runs what the first has not begun, and writes each report as a line of JSON."""

    def __init__(self, config, folder):
        self.config, self.parent, self.claims = config, os.getppid(), Claims(folder)
        self.wanted = {node: i for i, node in enumerate(json.loads(Path(folder, "wanted.json").read_text()))}
        self.out = open(Path(folder, "reports"), "a", encoding="utf-8")  # noqa: SIM115, until the process ends

    def pytest_collection_modifyitems(self, items):
        mine = sorted((item for item in items if item.nodeid in self.wanted), key=lambda item: self.wanted[item.nodeid])
        files = {path: i for i, path in enumerate(dict.fromkeys(item.path for item in mine))}
        items[:] = sorted(mine, key=lambda item: -files[item.path])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if self.claims(item):
            return None
        item.session.shouldstop = "the first process is here"
        return True

    def pytest_runtest_logreport(self, report):
        self.out.write(json.dumps(self.config.hook.pytest_report_to_serializable(config=self.config, report=report)) + "\n")
        self.out.flush()
        if os.getppid() != self.parent:
            pytest.exit("the first process is gone")


class Second:
    """In the first process: starts the second, and passes on the reports of what that has begun."""

    def __init__(self, config, items):
        self.config, self.reports, self.ended = config, {item.nodeid: [] for item in items}, set()
        self.folder = tempfile.TemporaryDirectory(prefix="hpmoe_tests_")
        self.claims = Claims(self.folder.name)
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
        if item.nodeid not in self.reports or self.claims(item):
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
            words = (f"the second process ended with {self.process.returncode} before this test did:\n"
                     f"{self.log.read()[-4000:]}")
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
    own = [item for item in session.items if item.path.name in OWN]
    shared = sorted((item for item in session.items if item.path.name not in OWN),
                    key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else -1)
    sizes = collections.Counter(item.path for item in shared).values()
    if sum(sizes) - max(sizes, default=0) >= FEWEST:
        session.items[:] = [*own, *shared]
        session.config.pluginmanager.register(Second(session.config, shared))
