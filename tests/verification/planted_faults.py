"""Faults planted in the functions that derive tables and prune waits, one at a time."""

import ctypes
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

from splice import splice

from hpmoe.kernels import build_native
from hpmoe.planner import planner
from hpmoe.tiling import dependencies, event_tables, rebuild, region_events, wait_units

# Which names of other modules are a module's functions and classes.
verify = sys.modules["hpmoe.verification.verify"]
USERS = {dependencies: [(rebuild, "derive_dependencies"), (verify, "derive_dependencies")],
         region_events: [(dependencies, "RegionEvents")], event_tables: [(dependencies, "Tables")],
         wait_units: [(dependencies, "read_unit"), (dependencies, "part_cols")]}


class Fault(NamedTuple):
    """A text of a module, or of a C++ source of the planner, that stands there once, and what takes its place."""

    what: str
    module: types.ModuleType | None
    old: str
    new: str


def plant(monkeypatch, fault):
    """Runs the fault's module with the fault in it until the patch is undone."""
    path = Path(fault.module.__file__)
    source = path.read_text(encoding="utf-8")
    assert source.count(fault.old) == 1, (fault.what, source.count(fault.old))
    faulty = types.ModuleType(fault.module.__name__)
    exec(compile(source.replace(fault.old, fault.new), f"{path.name} with {fault.what}", "exec"), faulty.__dict__)
    for user, name in USERS[fault.module]:
        monkeypatch.setattr(user, name, getattr(faulty, name))
    forget()


def forget():
    """Empties the caches of tables and of waits."""
    dependencies.derive_dependencies.cache_clear()
    planner.forget()


def compile_planner(faults, folder):
    """Compiles the planner with all faults of prune.cc; a function that chooses one by number, 0 for none."""
    source = (planner.FOLDER / "prune.cc").read_text(encoding="utf-8")
    spliced = splice(source, [(i, fault.old, fault.new) for i, fault in enumerate(faults, 1)])
    (folder / "prune.cc").write_text("extern \"C\" { int hpmoe_mutant = 0; }\n" + spliced, encoding="utf-8")
    others = [path for path in planner.FOLDER.glob("*.cc") if path.name != "prune.cc"]
    command = [*build_native.find_compiler(), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-I", planner.FOLDER,
               folder / "prune.cc", *others, "-o", folder / "_planner.so"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    number = ctypes.c_int.in_dll(ctypes.CDLL(str(folder / "_planner.so")), "hpmoe_mutant")
    return lambda i: setattr(number, "value", i)


def of(module, *faults):
    return [Fault(what, module, old, new) for what, old, new in faults]


FAULTS = [
    *of(dependencies,
        ("a launch that counts twice", 'f"launch {index}", 1)', 'f"launch {index}", 2)'),
        ("a launch that signals nothing", "        self.tables.signal(mine, self.launched.first, amount=tf.COUNT)\n", ""),
        ("a launch after one task less", 'f"before {index}", num_tasks)', 'f"before {index}", num_tasks - 1)'),
        ("completion flags that wait for nothing", "                self._wait_for_puts(i, op)\n", ""),
        ("only the first input waited for", "for a in op.inputs):", "for a in op.inputs[:1]):"),
        ("the first input not waited for", "for a in op.inputs):", "for a in op.inputs[1:]):"),
        ("memory taken over at once", "for release in releases.get(i, ()):", "for release in ():"),
        ("all units wait for the first", 'by_unit=int(unit in ("slot", "tile", "block"))', "by_unit=0"),
        ("slots wait for the first", 'by_unit=int(unit in ("slot", "tile", "block"))', 'by_unit=int(unit != "slot")'),
        ("experts wait for the first", 'by_expert=int(unit in ("expert", "copies"))', "by_expert=0"),
        ("columns of the first operand",
         "for a in accesses)\n                yield", "for a in accesses[:1])\n                yield"),
        ("columns without their offset", "(col + a.offset, col + a.offset + cols)", "(col, col + cols)"),
        ("memory of the first unit", 'by_unit=int(release.unit != "count")', "by_unit=0"),
        ("rows sent for rows returned", "[back, by_expert]\n", "[not back, by_expert]\n"),
        ("one part of each put", "np.arange(size), put_op.grid[2],", "np.arange(size), put_op.grid[2] + 1,"),
        ("puts of all peers to the first",
         "self.tables.signal(puts, block.first, by_peer=1)", "self.tables.signal(puts, block.first)"),
        ("completion flags of the first peer",
         "self.tables.wait(tasks, block.first, by_peer=1)", "self.tables.wait(tasks, block.first)"),
        ("completion flags of the first expert", "by_unit=1, by_peer=local)", "by_peer=local)"),
        ("puts by expert to the first peer", "tf.SLOT_EXPERT, by_peer=local)", "tf.SLOT_EXPERT)"),
        ("readers by expert wait for one",
         "block.first, tf.SLOT_EXPERT)\n            else:", "block.first)\n            else:")),
    *of(region_events,
        ("writers from the next tile on",
         "(start - access.offset) // op.tile_cols)", "(start - access.offset) // op.tile_cols + 1)"),
        ("writers up to the tile before",
         "-((access.offset - stop) // op.tile_cols))", "-((access.offset - stop) // op.tile_cols) - 1)"),
        ("columns of writers without offset", "(start - access.offset) // op.tile_cols)", "start // op.tile_cols)"),
        ("copies for returned copies", "tf.REPLICAS if writer.primitive.is_back else tf.REPLICA", "tf.REPLICA"),
        ("an expert for all rows", "return tf.EXPERT, np", "return tf.RECEIVED, np"),
        ("padding counted", "(tf.TILE if writer.domain.clipped else tf.STATIC_TILE)", "tf.STATIC_TILE"),
        ("tokens of full tiles", "(tf.TOKENS if writer.domain.clipped else tf.ONE)", "tf.ONE"),
        ("one row of each copy", "return self.buffers[region.storage].rows_per_expert or 1", "return 1"),
        ("one row of all", "return times * self.ops[chosen[0][0]].domain.num_rows", "return times"),
        ("rows counted for one column tile", 'signal != "tile" else self._times_each(tasks)', 'signal != "tile" else 1'),
        ("rows counted for each part", "1 if self.ops[tasks.op].parts > 1 else tasks.num_tiles", "tasks.num_tiles"),
        ("completion flags of experts for the first", 'by_unit=int(region.unit == "expert"), remote=tf.PEER)',
         "remote=tf.PEER)"),
        ("completion flags that stay here",
         'by_unit=int(region.unit == "expert"), remote=tf.PEER)', 'by_unit=int(region.unit == "expert"))'),
        ("copies told here", "tf.SLOT_EXPERT, remote=tf.PEER)", "tf.SLOT_EXPERT)"),
        ("collectives told here",
         "self.tables.signal(tasks, block.first, remote=tf.EVERY_RANK)", "self.tables.signal(tasks, block.first)"),
        ("puts told here", "remote = tf.PEER if op.num_peers else tf.LOCAL", "remote = tf.LOCAL"),
        ("rows of all experts for the first", "tf.SLOT_EXPERT, remote=remote)", "remote=remote)"),
        ("returned rows for the first tile", "tf.ENTRY_TILE, remote=remote)", "remote=remote)"),
        ("all units signal the first", 'by_unit=int(region.unit != "all"), remote=remote)', "remote=remote)"),
        ("one reader that releases", "for r in release.readers]", "for r in release.readers[:1]]"),
        ("released by one column tile", "sum(self._times_each(tasks) for _, tasks in readers)", "1"),
        ("released unit by unit to the first",
         "self.tables.signal(tasks, block.first, by_unit=1)\n        return",
         "self.tables.signal(tasks, block.first)\n        return"),
        ("one task less that releases",
         "return sum(self.tables.count(tasks) for _, tasks in chosen)",
         "return sum(self.tables.count(tasks) for _, tasks in chosen) - 1")),
    *of(event_tables,
        ("rules of waits lost with the last operation",
         "for rules, count, dtype in ((self.waits,", "for rules, count, dtype in ((self.waits[:-1],"),
        ("thresholds of the block before",
         'events["mult"][first:first + size] = counted.mult', 'events["mult"][first:first + size] = self.events[0].mult'),
        ("units in another order", "[first:first + size] = counted.index", "[first:first + size] = counted.index[::-1]")),
    *of(wait_units,
        ("a slot for all rows of an expert", 'return "expert"', 'return "slot"'),
        ("all rows of a blocking transfer by tile", '        return "all"\n    reads', '        return "tile"\n    reads')),
]

PRUNED = of(
    None,
    ("waits for another queue",
     "last.queue < 0 || last.queue != here.queue || last.position >= here.position",
     "last.queue < 0 || last.position >= here.position"),
    ("waits for other ranks in its queue", "if (is_remote_[gate]) return last;", ";"),
    ("producers of one queue for all", "(last.queue >= 0 && places_[t].queue != last.queue)", "false"),
    ("waits made in other queues", "*is_needed = last != queue;", "*is_needed = last < 0;"),
    ("waits after all", "std::find(earlier.begin(), earlier.end(), mine.event) != earlier.end()", "true"),
)
