"""Machines as files: what is written is read back, what differs is enough, and what is wrong is named."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tomllib
from published_work import Sizes, exchange_us, sent_bytes

import hpmoe
from hpmoe.cli import main
from hpmoe.commands.bands import bands, sensitivity, spans
from hpmoe.commands.layer import Layer, ids_of
from hpmoe.machines.machine import CONSTANTS, OPTIONAL
from hpmoe.machines.machine_files import FOLDER, KEYS, machine_text, preset_names
from hpmoe.machines.perturbed import at_ends, drawn, uncertain
from hpmoe.support.errors import ArgumentError

SIZES = Sizes(ep=4, tokens=256, hidden=512, intermediate=256, experts=8, top_k=2)
FLAGS = [f"--{name}={value}" for name, value in dataclasses.asdict(SIZES).items()]
POLL = 'name = "a"\nlike = "ascend_a3"\n[sync.poll_us]\n'
QUIET = str  # what a progress line is given goes nowhere


def written(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", [*preset_names(), "ascend_a2.910B3"])
def test_a_machine_written_is_the_one_read(tmp_path, name):
    machine = hpmoe.load_machine(name)
    again = hpmoe.load_machine(written(tmp_path, machine_text(machine)))
    assert again == machine and dict(machine.constants).items() <= dict(again.constants).items()


def test_this_cpu_with_measured_bodies_is_written_too(tmp_path):
    bodies = (hpmoe.machines.machine.Body("GMM", "float32", 0.75, 6.5, 10.0, 20.0, 0.0),)
    machine = hpmoe.cpu(2).replace(bodies=bodies)
    assert hpmoe.load_machine(written(tmp_path, machine_text(machine))) == machine


@pytest.mark.parametrize("name", preset_names())
def test_every_constant_has_a_source_a_date_and_a_range(name):
    """In the file too, whose tables are those of a machine like it where it has none."""
    machine = hpmoe.load_machine(name)
    left = set(CONSTANTS) - set(dict(machine.constants))
    assert left <= {name for name in OPTIONAL if machine[name] == CONSTANTS[name].default}
    for field, known in machine.constants:
        assert len(known.source) > 5 and known.date >= "2023" and known.low <= machine[field] <= known.high
        assert known.is_sure or known.low < known.high
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    for group in found.values():
        for table in [group] if "value" in group else group.values() if isinstance(group, dict) else []:
            assert {*table, *{"date"} & set(found)} == set(KEYS), table


def test_a_file_is_like_another_of_its_folder(tmp_path):
    mine = written(tmp_path, POLL + 'value = 3\nunit = "us"\nsource = "me"')
    other = tmp_path / "other.toml"
    other.write_text('name = "b"\nlike = "mine.toml"\n[host.cores]\nvalue = 2\nunit = "cores"\nsource = "me"')
    machine = hpmoe.load_machine(other)
    assert machine == hpmoe.load_machine(mine).replace({"host.cores": 2.0}, name="b") and machine.sync.poll_us == 3
    other.write_text('name = "b"\nlike = "mine.toml"')
    Path(mine).write_text('name = "a"\nlike = "other.toml"')
    with pytest.raises(ArgumentError, match=r"like is 'other.toml'; it must be one of .*, or another \.toml file"):
        hpmoe.load_machine(other)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "inner.toml").write_text('name = "c"\nlike = "../mine.toml"')
    with pytest.raises(ArgumentError, match=r"like is '../mine.toml'; it must be one of"):
        hpmoe.load_machine(tmp_path / "below" / "inner.toml")


def test_units_are_those_of_the_file(tmp_path):
    text = 'name = "mine"\nlike = "ascend_a3"\n[{}]\nvalue = {}\nunit = "{}"\nsource = "me"'
    for field, value, unit, wanted in (("link.bytes_per_us", 98, "GB/s", 98e3), ("l2.bytes", 96, "MiB", 96 * 2**20),
                                       ("sync.poll_us", 700, "ns", 0.7), ("num_aic", 8, "workers", 8)):
        machine = hpmoe.load_machine(written(tmp_path, text.format(field, value, unit)))
        assert machine[field] == pytest.approx(wanted) and machine.num_aiv == 48


@pytest.mark.parametrize("text, message", [
    ("name = 1", "num_aic"), ("x", "cannot be read as TOML"), ('name = "a"\nlike = "b"', "like is 'b'; it must be one of"),
    ('name = "a"\nlike = "ascend_a3"\nlink = 1', "link is unknown"),
    ('name = "a"\nlike = "ascend_a3"\ndate = "soon"', "date is 'soon'; it must be a str such as"),
    ('name = "a"\nlike = "ascend_a3"\n[link]\nbytes_per_us = 1', "a table with value, unit and source"),
    ('name = "a"\nunified = false\n[num_aic]\n[worker_l2_bytes_per_us]\n[matmul_fill_us]',
     "matmul_fill_us and unified and worker_l2_bytes_per_us are unknown; they must be name, like, date, bodies or a table "
     "of a constant. "
     "Write [cube.fill_us] for [matmul_fill_us], [l2.worker_bytes_per_us] for [worker_l2_bytes_per_us]. Leave out unified: "
     "machines without AIV have num_aiv = 0. The command `hpmoe machine ascend_a3` prints a file of the right form."),
    (POLL + 'value = 1\nunit = "GB/s"\nsource = "me"', "sync.poll_us.unit is 'GB/s'"),
    (POLL + 'value = 1\nunit = "us"', "sync.poll_us.source is None"),
    (POLL + 'value = 1\nunit = "us"\nsource = "me"\nx = 1', "sync.poll_us.x is unknown"),
    (POLL + 'value = 1\nunit = "us"\nsource = "me"\ndate = 2026', "date is 2026"),
    (POLL + 'value = 1\nunit = "us"\nsource = "me"\ndate = "soon"', "as 2026-11-23"),
    (POLL + 'value = "1"\nunit = "us"\nsource = "me"', "sync.poll_us.value is '1'"),
    (POLL + 'value = 1\nunit = "us"\nsource = "me"\nrange = [2, 3]', "in its range"),
    (POLL + 'value = 1\nunit = "us"\nsource = "me"\nrange = 2', "range is 2"),
    ('name = "a"\nlike = "ascend_a3"\n[num_aic]\nvalue = 0\nunit = "workers"\nsource = "me"', "num_aic is 0"),
    ('name = "a"\nlike = "ascend_a3"\n[[bodies]]\nkind = "GMM"', "the keys of a table of bodies"),
    ('name = "a"\nlike = "ascend_a3"\nbodies = 3', "bodies is 3"),
])
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(ArgumentError) as error:
        hpmoe.load_machine(written(tmp_path, text))
    assert message in str(error.value) and "mine.toml" in str(error.value)


def test_commands_take_files_and_write_them(tmp_path, capsys):
    path = str(tmp_path / "mine.toml")
    assert main(["machine", "ascend_950pr", f"--out={path}"]) == 0
    assert hpmoe.load_machine(path).num_aic == hpmoe.load_machine("ascend_950pr").num_aic
    assert capsys.readouterr().out == f"ascend_950pr: written to {path}\n"
    assert main(["machine", "ascend_950pr"]) == 0 and capsys.readouterr().out == (tmp_path / "mine.toml").read_text()
    assert main(["machine", path, "--json"]) == 0 and '"name": "ascend_950pr"' in capsys.readouterr().out
    assert main(["simulate", *FLAGS, f"--machine={path}"]) == 0 and "mine.toml" not in capsys.readouterr().err
    assert main(["simulate", "--machine=ascend_a4"]) == 2
    assert "flag --machine=ascend_a4: it must be one of cpu, ascend_950dt, ascend_950pr, " in capsys.readouterr().err


def test_a_machine_that_is_not_there_is_said(tmp_path):
    for which, message in (("ascend_a4", "one of ascend_950dt, ascend_950pr, "),
                           (tmp_path / "no.toml", "no.toml', and there is no such file; ")):
        with pytest.raises(ArgumentError, match=message):
            hpmoe.load_machine(which)


def test_a_group_and_a_constant_of_it_can_change_together():
    link = hpmoe.cpu(2).link
    changed = hpmoe.machines.ascend_a3.replace({"link.node_size": 4}, link=link).link
    assert changed == dataclasses.replace(link, node_size=4)


def test_what_a_machine_changes_is_no_longer_known_of_it():
    machine = hpmoe.machines.ascend_a3.replace({"sync.poll_us": 0.5})
    assert "sync.poll_us" in uncertain(hpmoe.machines.ascend_a3) and "sync.poll_us" not in dict(machine.constants)


def test_drawn_machines_fill_the_ranges():
    machines = list(drawn(hpmoe.machines.ascend_a3, 16, seed=3))
    for name, known in uncertain(hpmoe.machines.ascend_a3).items():
        places = np.log([m[name] / known.low for m in machines]) / np.log(known.high / known.low)
        assert sorted((places * 16 * (1 - 1e-12)).astype(int)) == list(range(16))
    ends = {name: (low[name], high[name]) for name, low, high in at_ends(hpmoe.machines.ascend_a3)}
    assert ends == {name: (known.low, known.high) for name, known in uncertain(hpmoe.machines.ascend_a3).items()}


def test_bands_hold_the_figure_and_sensitivity_ranks_constants():
    layer = Layer(SIZES, "forward", hpmoe.machines.ascend_a3, ids_of(SIZES))
    flows = layer.fused_flow(), layer.baseline_flow()
    nominal = spans(layer, flows, hpmoe.machines.ascend_a3)
    found = bands(layer, flows, nominal, 4, QUIET)
    assert nominal["fused"] == pytest.approx(layer.span_us(layer.fused()) / 1e3)
    assert all(low <= nominal[side] <= high and low < high for side, (low, high) in found.items())
    rows = sensitivity(layer, flows, QUIET)
    (launch,) = (row for row in rows[:3] if row["constant"] == "host.launch_us")
    assert launch["at_low"]["fused"] < launch["at_high"]["fused"]
    sure = hpmoe.machines.ascend_a3.replace(constants=())
    exact = Layer(SIZES, "forward", sure, ids_of(SIZES))
    assert bands(exact, flows, nominal, 4, QUIET) == {} and sensitivity(exact, flows, QUIET) == []


def test_far_ranks_take_the_link_longer():
    machine = hpmoe.machines.ascend_a3.replace({"link.near_size": 4, "link.bytes_per_us": 90.0,
                                                "link.far_bytes_per_us": 30.0})
    assert machine.link.rate(1) == machine.link.rate(4) == 90.0
    assert machine.link.rate(8) == pytest.approx(7 / (3 / 90 + 4 / 30))
    assert machine.replace({"link.node_size": 2}).link.rate(8) == 90.0  # all others are of other nodes


def test_exchanges_of_others_are_limited_by_their_links():
    sizes = Sizes(ep=4, tokens=1024, hidden=1024, intermediate=1, experts=8, top_k=2)
    slow = hpmoe.machines.ascend_a3.replace({"link.bytes_per_us": 1e4})
    assert sent_bytes(sizes, False) == 1024 * 2 * 1024 * 2.0 > sent_bytes(sizes, True)
    for leg in ("dispatch", "combine"):
        assert exchange_us(slow, leg, sizes) >= 0.7 * sent_bytes(sizes, False) / 1e4
        assert exchange_us(slow, leg, sizes, True) < exchange_us(slow, leg, sizes)
