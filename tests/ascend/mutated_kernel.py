"""The Ascend kernel with planted faults, one of which is chosen at run time, and how a run gives a faulty one away."""

import ctypes
import functools
import re
import subprocess
from itertools import product

import numpy as np
from ascend_helpers import from_seed
from mindspore.graph.api import _pynative_executor as executor
from splice import splice

from hpmoe.kernels import build_native
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.kernels.memory import Pool
from hpmoe.support.errors import LaunchError

KERNELS = build_native.KERNELS
SEEDS = 6  # orders that a mutant is tried in until it is caught
LEASE = Pool.lease
CHOSEN = """#pragma once
struct Chosen {
  int number;
  bool reached[1024];  // of each fault, since it was cleared
  bool operator==(int fault) { return reached[fault] = true, number == fault; }
};
extern Chosen hpmoe_mutant;
"""


class Chosen(ctypes.Structure):
    """Chooses a fault by number, 0 for none, and knows whose places in the source were reached."""

    _fields_ = ("number", ctypes.c_int), ("flags", ctypes.c_bool * 1024)

    def __call__(self, number):
        self.number = number

    def reached_by(self, run):
        """Returns the result of a run, and the faults whose places it reached."""
        ctypes.memset(self.flags, 0, len(self.flags))
        return run(), {number for number, reached in enumerate(self.flags) if reached}


def choose_among(mutants, folder, *flags):
    """Compiles the kernel with all faults and has the emulator run that kernel; returns its Chosen."""
    (folder / "chosen.h").write_text(CHOSEN)
    for path in (*KERNELS.glob("core/*.h"), *KERNELS.glob("ascendc/*.h"), KERNELS / "ascendc/kernel.cpp"):
        edits = [(number, *edit) for number, m in enumerate(mutants, 1) if m.file == path.name for edit in m.edits]
        copy = folder / path.relative_to(KERNELS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text('#include "chosen.h"\n' + splice(path.read_text(), edits))
    main = folder / "main.cpp"
    main.write_text('#include "ascendc/kernel.cpp"\nChosen hpmoe_mutant;\n')
    library, emulator = folder / "mutants.so", emulator_library.load()
    command = [*build_native.find_compiler(), "-std=c++17", "-Og", "-w", "-fPIC", "-shared", *flags, "-I", folder, "-I",
               KERNELS, "-I", KERNELS / "ascendc/emulator", main, emulator_library.COMPILED, "-o", library]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = ctypes.CDLL(str(library))
    emulator.hpmoe_emulator_use_kernel(ctypes.cast(compiled.hpmoe_persistent, ctypes.c_void_p))
    return Chosen.in_dll(compiled, "hpmoe_mutant")


def looks_wrong(run, right, seed, monkeypatch):
    """Returns the symptom of a wrong kernel in one order: an error, or results other than the right kernel's; or None."""
    from_seed(monkeypatch, 100 * seed)
    try:
        got = run()
    except LaunchError as error:
        executor.clear_res()  # an exception inside a gradient leaves MindSpore in it
        executor.set_grad_flag(False)
        return re.sub(r"\s+", " ", str(error))
    return None if all(np.array_equal(a, b) for a, b in zip(got, right, strict=True)) else "wrong numbers"


def how_caught(number, chosen, runs, right, monkeypatch, likely):
    """Returns the symptom of the kernel with a number, or None; `likely(name)` is least for the runs to try first.

    Each run is one of the right kernel before: what an earlier fault left of its counters and memory catches none.
    """
    for seed, name in sorted(product(range(SEEDS), runs), key=lambda each: likely(each[1])):
        looks = functools.partial(looks_wrong, runs[name], right[name], seed, monkeypatch)
        chosen(0)
        if looks() and looks():  # after counters of either pass that were off, which a failure clears
            assert looks() is None, name
        chosen(number)
        if found := looks():
            return found
    return None


def lease_of_nan(pool, sizes):
    """Leases memory in which every float is NaN, so that no kernel finds the results of an earlier launch there."""
    lease = LEASE(pool, sizes)
    for i in range(len(sizes)):
        lease.array(i)[...] = 0xFF
    return lease


def catch_all(mutants, chosen, runs, monkeypatch, capsys):
    """Tries each of them and prints how it is caught; those that are not."""
    monkeypatch.setattr(Pool, "lease", lease_of_nan)
    chosen(0)
    right, reached = {}, {}
    for name, run in runs.items():
        right[name], reached[name] = chosen.reached_by(run.assert_close_to_float64)
    lines, missed = [], []
    for number, mutant in enumerate(mutants, 1):
        found = how_caught(number, chosen, runs, right, monkeypatch,
                           likely=lambda name, n=number, m=mutant: (name != m.shows_in, n not in reached[name]))
        lines.append(f"{mutant.what}: {found or 'NOT CAUGHT'}"[:160])
        missed += [mutant.what] if found is None else []
    with capsys.disabled():
        print("", *lines, f"{len(mutants) - len(missed)} of {len(mutants)} planted faults are caught", sep="\n")
    return missed
