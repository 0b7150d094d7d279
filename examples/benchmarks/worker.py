"""The process of one side: loads it, and does what the lines on stdin ask, one JSON object each, answered by one line.

Run as a file, `python worker.py PROBLEM_FOLDER MODULE ENTRY`, so that nothing but the side's own framework is imported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = str(Path(__file__).resolve().parent)
PR_SET_PDEATHSIG = 1
MIN_SECONDS, MAX_RUNS = 0.05, 20  # of the timed runs of one turn


def load(name: str, folder: str = FOLDER) -> Any:
    """A file of a folder as a module, without the folder on sys.path."""
    spec = importlib.util.spec_from_file_location(name, Path(folder, f"{name}.py"))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def memory() -> Any:
    """hpmoe.support.host, without the package hpmoe, which imports MindSpore."""
    (folder,) = importlib.util.find_spec("hpmoe").submodule_search_locations
    return load("host", str(Path(folder, "support")))


class Worker:
    """The commands: what a line names is called with its other fields, and what it returns is the answer."""

    def __init__(self, folder: str, module: str, entry: str):
        self.problem = load("layer_problem").LayerProblem.read(folder)
        self.entry = getattr(load(module), entry)
        self.passes: dict[str, Any] = {}
        self.memory = memory()

    def build(self) -> dict[str, Any]:
        """Makes the side; memory is counted from here on."""
        self.memory.forget_peak()
        self.base = self.memory.status_kib("VmRSS")
        self.passes, self.to_numpy = self.entry(self.problem)
        return {"passes": list(self.passes)}

    def check(self, which: str, save: str) -> dict[str, Any]:
        """Runs a pass once and saves its results as `save`/0.npy, 1.npy, ...; tells the seconds that took."""
        begin = time.perf_counter()
        results = self.passes[which]()
        seconds = time.perf_counter() - begin
        for i, result in enumerate(results):
            self._save(f"{save}/{i}.npy", result)
        return {"seconds": seconds}

    def _save(self, path: str, result: Any) -> None:
        """One matrix at a time, so that conversions hardly count as memory."""
        parts = result if isinstance(result, (list, tuple)) else [result]
        for i, part in enumerate(parts):
            array = self.to_numpy(part)
            if i == 0:
                shape = (len(parts), *array.shape) if parts is result else array.shape
                out = np.lib.format.open_memmap(path, "w+", np.float32, shape)
            out[i if parts is result else ...] = array

    def turn(self, which: str) -> dict[str, Any]:
        """Milliseconds of each timed run of a pass; one untimed run before them finds the caches as it leaves them."""
        f, times = self.passes[which], []
        f()
        while sum(times) < MIN_SECONDS and len(times) < MAX_RUNS:
            begin = time.perf_counter()
            f()
            times.append(time.perf_counter() - begin)
        return {"ms": [t * 1e3 for t in times]}

    def peak(self) -> dict[str, Any]:
        """The largest memory since `build`, beyond what the imports had taken."""
        return {"mib": (self.memory.status_kib("VmHWM") - self.base) / 1024}


def main() -> None:
    # A worker is stopped while others run, and a stopped one would outlive a parent that was killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    warnings.simplefilter("ignore")
    # What a framework prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(*sys.argv[1:])
    for line in sys.stdin:
        fields = json.loads(line)
        answer = getattr(worker, fields.pop("do"))(**fields)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
