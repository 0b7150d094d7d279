"""Machines as TOML files: every number with its unit, its source, and the range that it may lie in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import tomllib

from hpmoe.machines.constant import Constant, units_of
from hpmoe.machines.machine import CONSTANTS, GROUPS, OPTIONAL, Body, Machine, nearest_constant
from hpmoe.support.errors import ArgumentError, check_argument, is_name, is_number, kind_of
from hpmoe.support.keywords import nearest, suggests_keywords

FOLDER = Path(__file__).parent / "files"
FIELDS = ("name", "like", "date", "bodies")
KEYS = ("value", "unit", "source", "date", "range")
WHO = "hpmoe.load_machine"
SHOWN = 4  # names in an error
DATE = re.compile(r"(\d{4}(-\d{2}(-\d{2})?)?)?")


def preset_names() -> list[str]:
    """Returns the names of the machines that come with hpmoe, without this CPU.

    Example:
        >>> preset_names()
        ['ascend_950dt', 'ascend_950pr', 'ascend_a2', 'ascend_a3']
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@suggests_keywords
def load_machine(which: str | Path) -> Machine:
    """Returns a Machine from its name in hpmoe or from a TOML file.

    A file has `name` and a table for each constant of a Machine, such as [link.bytes_per_us]: `value`, `unit`, `source`,
    `date` if it is known, and `range = [low, high]` if the value is not sure. A `date` before the tables is that of each
    table without its own. With `like`, the name of a machine that comes with hpmoe or of another file in the same folder, a
    file needs only the constants that differ.
    `hpmoe machine ascend_a3` writes one to begin with.

    Args:
        which: the path of a file whose name ends in .toml; or "ascend_a3" or another name of those that come with hpmoe,
            with a bin after it where it has some, "ascend_a2.910B3".

    Raises:
        ArgumentError: no machine has this name, or the file cannot be read or has an error; the text names the table.

    Example:
        >>> import hpmoe, tempfile
        >>> with tempfile.NamedTemporaryFile("w+", suffix=".toml") as file:
        ...     _ = file.write('''name = "mine"
        ... like = "ascend_a3"
        ... [link.bytes_per_us]
        ... value = 98
        ... unit = "GB/s"
        ... source = "the half of it"''')
        ...     file.flush()
        ...     mine = hpmoe.load_machine(file.name)
        >>> mine.name, mine.link.bytes_per_us, mine.num_aic
        ('mine', 98000.0, 24)
        >>> hpmoe.load_machine("ascend_950pr").name
        'ascend_950pr'
    """
    check_argument(isinstance(which, (str, Path)), WHO, "which", kind_of(which), "a name or the path of a .toml file")
    name, _, sold_as = str(which).partition(".")
    if name in preset_names() and sold_as != "toml":
        machine = _read(FOLDER / f"{name}.toml")
        return machine.of_bin(sold_as) if sold_as else machine
    near = nearest(name, preset_names())
    check_argument(str(which).endswith(".toml"), WHO, "which", repr(str(which)),
                   f"one of {', '.join(preset_names())}, or a file whose name ends in .toml",
                   f"Did you mean {near!r}?" if near else "The command `hpmoe machine ascend_a3` prints a file to change.")
    check_argument(Path(which).is_file(), WHO, "which", f"{str(which)!r}, and there is no such file",
                   f"a file that exists, or one of {', '.join(preset_names())}",
                   "The command `hpmoe machine ascend_a3` prints a file to change.")
    return _read(Path(which))


def machine_text(machine: Machine) -> str:
    """Returns the text of a TOML file from which load_machine reads a machine."""
    constants = dict(machine.constants)
    parts = [f"name = {json.dumps(machine.name)}"]
    parts += [_table(name, machine[name], constants.get(name)) for name in CONSTANTS]
    parts += ["[[bodies]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in dataclasses.asdict(body).items())
              for body in machine.bodies]
    return "\n\n".join(parts) + "\n"


def _table(name: str, value: float, constant: Constant | None) -> str:
    units = units_of(name)
    unit = constant.unit if constant else next(iter(units))
    lines = [f"[{name}]", f"value = {_in_unit(value, units[unit])}", f"unit = {json.dumps(unit)}",
             f"source = {json.dumps(constant.source if constant else 'set by a user', ensure_ascii=False)}"]
    lines += [f"date = {json.dumps(constant.date)}"] if constant and constant.date else []
    if constant:
        lines.append("range = [{}, {}]".format(*(_in_unit(x, units[unit]) for x in (constant.low, constant.high))))
    return "\n".join(lines)


def _read(path: Path, before: tuple[Path, ...] = ()) -> Machine:
    """Reads a file; `before` are the files that led to it, each by its `like`."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{WHO}: {path} cannot be read as TOML: {error}") from None
    try:
        return _machine(found, (*before, path))
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None


def _base(like: object, files: tuple[Path, ...]) -> Machine | None:
    """Returns the machine that `like` of the last file names, or None."""
    if like is None:
        return None
    if is_name(like, preset_names()):
        return load_machine(like)
    path = files[-1].with_name(Path(str(like)).name or "?")
    is_beside = path.name == like and path.suffix == ".toml" and path.is_file()
    check_argument(is_beside and path not in files, WHO, "like", repr(like),
                   f"one of {', '.join(preset_names())}, or another .toml file of the same folder")
    return _read(path, files)


def _in_unit(value: float, factor: float) -> str:
    """Returns the shortest text whose number times the factor is the value."""
    if isinstance(value, int):
        return str(value)
    rounded = (float(format(value / factor, f".{digits}g")) for digits in range(1, 18))
    number = next((x for x in rounded if x * factor == value), value / factor)
    return repr(number).removesuffix(".0")


def _machine(found: Mapping[str, object], files: tuple[Path, ...]) -> Machine:
    base = _base(found.get("like"), files)
    tables = dict(_named(found))
    _check_names(tables, needs=() if base else [name for name in CONSTANTS if name not in OPTIONAL])
    date = _date("date", found.get("date", ""))
    read = {name: _number(name, table, date) for name, table in tables.items() if name in CONSTANTS}
    values = {name: value for name, (value, _) in read.items()}
    fields: dict[str, object] = {"name": found["name"]}
    if "bodies" in found:
        fields["bodies"] = _bodies(found["bodies"])
    known = {**dict(base.constants if base else ()), **{name: constant for name, (_, constant) in read.items()}}
    fields["constants"] = tuple(known.items())
    if base:
        return base.replace(values, **fields)
    for group, made in GROUPS.items():
        mine = {name.partition(".")[2]: values.pop(name) for name in list(values) if name.startswith(f"{group}.")}
        fields[group] = made(**mine)  # pyright: ignore[reportArgumentType]  a group checks them, as Machine does
    return Machine(**fields, **values)  # pyright: ignore[reportArgumentType]


def _named(found: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yields what a file has with the names of constants: the table [link.bytes_per_us] is in the table [link]."""
    for name, value in found.items():
        if name in GROUPS and isinstance(value, dict):
            yield from ((f"{name}.{field}", inner) for field, inner in value.items())
        else:
            yield name, value


def _check_names(tables: Mapping[str, object], needs: Iterable[str]) -> None:
    """Raises ArgumentError if a file has a name that is not known, as of the time before groups, or lacks one."""
    unknown = sorted(set(tables) - {*CONSTANTS, *FIELDS})
    written = [f"[{near}] for [{name}]" for name in unknown if (near := nearest_constant(name))][:SHOWN]
    hint = f"Write {', '.join(written)}. " if written else ""
    hint += "Leave out unified: machines without AIV have num_aiv = 0. " if "unified" in unknown else ""
    check_argument(not unknown, WHO, " and ".join(unknown[:SHOWN]), "unknown",
                   f"{', '.join(FIELDS)} or a table of a constant",
                   f"{hint}The command `hpmoe machine ascend_a3` prints a file of the right form.")
    missing = [name for name in ("name", *needs) if name not in tables]
    check_argument(not missing, WHO, ", ".join(missing), "missing", "there", "With like = \"ascend_a3\" it may be.")


def _date(name: str, date: object) -> str:
    check_argument(isinstance(date, str) and bool(DATE.fullmatch(date)), WHO, name, repr(date),
                   "a str such as 2026-11-23, 2026-11 or 2026")
    return str(date)


def _number(name: str, table: object, date: str) -> tuple[float, Constant]:
    check_argument(isinstance(table, dict), WHO, name, repr(table), "a table with value, unit and source")
    assert isinstance(table, dict)
    for key in sorted(set(table) - set(KEYS)):
        check_argument(False, WHO, f"{name}.{key}", "unknown", f"one of {', '.join(KEYS)}")
    units, unit, source = units_of(name), table.get("unit"), table.get("source")
    check_argument(unit in units, WHO, f"{name}.unit", repr(unit), f"one of {', '.join(units)}")
    check_argument(isinstance(source, str) and bool(source), WHO, f"{name}.source", repr(source),
                   "a str that says who measured it, or that it is assumed")
    date = _date(f"{name}.date", table.get("date", date))
    given = [table.get("value"), *_range(name, table)]
    for value in given:
        check_argument(is_number(value), WHO, f"{name}.value", repr(value), "a number")
    value, low, high = (x if CONSTANTS[name].type == "int" else float(x) * units[str(unit)] for x in given)
    check_argument(low <= value <= high, WHO, f"{name}.value", f"{given[0]} outside of {given[1:]}", "in its range")
    return value, Constant(str(source), float(low), float(high), str(unit), date)


def _range(name: str, table: Mapping[str, object]) -> list[object]:
    found = table.get("range", [table.get("value")] * 2)
    check_argument(isinstance(found, list) and len(found) == 2, WHO, f"{name}.range", repr(found), "[low, high]")
    return list(found) if isinstance(found, list) else []


def _bodies(found: object) -> tuple[Body, ...]:
    check_argument(isinstance(found, list) and all(isinstance(b, dict) for b in found), WHO, "bodies", repr(found),
                   "an array of tables")
    names = [f.name for f in dataclasses.fields(Body)]
    out = []
    for body in found if isinstance(found, list) else []:
        wrong = sorted(set(body) ^ set(names))
        check_argument(not wrong, WHO, "the keys of a table of bodies", ", ".join(body), ", ".join(names))
        out.append(Body(**body))
    return tuple(out)
