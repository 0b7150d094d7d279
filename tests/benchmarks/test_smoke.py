"""Each benchmark runs at a tiny size, holds its sides to one result, and prints the JSON of its page."""

import functools
import importlib
import json

import permute
import pytest
import styles
from command_line import run_script
from namespaces import Hosts, NoHostsError

import hpmoe
from hpmoe.commands import options
from hpmoe.support.errors import LaunchError

TINY = "--tokens=24 --hidden=16 --intermediate=8 --experts=4 --top_k=2 --repeats=1 --peers=none"
SIMULATED = "--tokens=128 --hidden=256 --intermediate=128 --ep=4 --experts=8 --top_k=2"
PLANNED = "--ep=2 --tokens=8 --hidden=8 --intermediate=4 --top_k=1 --runs=1"
RUNS = {  # the script, its flags, and the fields of its report
    "permute": ("permute", "--tokens=32 --hidden=8 --repeats=1", {"cases", "sort"}),
    "styles": ("permute", "--styles --tokens=16 --hidden=8 --intermediate=8 --experts=4 --top_k=2 --repeats=1", {"cases"}),
    "call": ("call", "--tokens=4 --hidden=16 --intermediate=8 --experts=4 --top_k=2 --calls=2", {"microseconds"}),
    "planning": ("planning", f"{PLANNED} --experts=4", {"forward", "backward", "rows"}),
    "ablation": ("ablation", f"{SIMULATED} --most_ranks=2 --direction=backward", {"simulated", "rows"}),
    "nodes": ("ablation", "--machine=ascend_a2 --nodes=2 --tokens=16 --hidden=64 --intermediate=32 --top_k=4",
              {"simulated", "rows", "fastest"}),
}
PROCESSES = {"layer": ("layer", f"{TINY} --dtype=float32"), "processes": ("processes", f"{TINY} --dtype=float32"),
             "hosts": ("hosts", f"{TINY} --dtype=float32 --rates=1")}


def report(capsys, name, flags):
    status, out, err = run_script(capsys, importlib.import_module(name), *flags.split(), "--json")
    assert status == 0, out + err
    return json.loads(out)


@pytest.mark.parametrize("name", RUNS)
def test_a_tiny_run_reports_its_fields(capsys, monkeypatch, name):
    monkeypatch.setattr(permute, "sort_times", functools.partial(permute.sort_times, (2**10, 2**12)))
    script, flags, fields = RUNS[name]
    found = report(capsys, script, flags)
    assert fields <= set(found) and all(found[field] for field in fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_sides_in_processes_are_right(capsys, name):
    if name == "hosts":
        try:
            Hosts().close()
        except NoHostsError as error:
            pytest.skip(str(error))
    assert report(capsys, *PROCESSES[name])["ok"]


def test_sides_that_differ_are_an_error(monkeypatch):
    case = permute.Case(32, 8, "float32")
    forward = case.sides["hpmoe forward"]
    case.sides["hpmoe forward"] = lambda: forward() * 2.0
    with pytest.raises(LaunchError, match="permute rows differently"):
        case.measured(1)
    monkeypatch.setitem(styles.SIDES, "dispatch, combine", lambda *args: hpmoe.moe_ffn(*args) * 2.0)
    sizes = {"ep": 1, "tokens": 4, "hidden": 8, "intermediate": 8, "experts": 2, "top_k": 1}
    with pytest.raises(LaunchError, match="permute, exchange and dispatch, combine compute different results"):
        styles.measured(sizes, "float32", 0, 1)


@pytest.mark.parametrize("name, flags, told", [
    ("layer", "--peers=jaxx", "flag --peers=jaxx: it must be all, none, or a list of mindspore, "),
    ("layer", "--suite --ep=2", "flag --ep=2: it must be 1 with --suite"),
    ("processes", "--experts=9 --peers=none", "flag --experts=9: it must be a multiple of 2"),
    ("hosts", "--peers=none --rates=0", "flag --rates=0: it must be numbers from 0.001 to 1000"),
    ("schedule_grid", "--recorded --rules", "flag --recorded=True: it must be given without other modes"),
    ("schedule_grid", "--rules --row_capacities", "flag --row_capacities=True: it must be left out with --rules"),
    ("ablation", "--nodes=1 --machine=cpu", "--nodes=1: it must be at most 0, of 1048576 ranks on cpu"),
])
def test_wrong_flags_are_named(capsys, name, flags, told):
    status, out, err = run_script(capsys, importlib.import_module(name), *flags.split())
    assert (status, out) == (2, "") and told in err


def test_a_picture_needs_matplotlib(capsys, monkeypatch):
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None)
    status, _, err = run_script(capsys, importlib.import_module("layer"), "--out=x.png")
    assert status == 2 and "it must be left out where matplotlib is not installed; pip install '.[plot]'" in err
