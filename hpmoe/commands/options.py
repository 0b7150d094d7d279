"""Flags of a command: absl parses them, and one wording says what is wrong with them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

from absl import flags

from hpmoe.ir.limits import MOST_EXPERTS, MOST_RANKS, MOST_ROWS
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import Sentence
from hpmoe.support.keywords import nearest

MOST = 2**30
GROUP = "layer and schedule"  # flags that all commands of a layer have in common
MOST_COLUMNS = 118  # of a help text
Options = flags.FlagValues | SimpleNamespace  # what flags say, by name


class UsageError(Sentence):
    """Raised for a command line that cannot run; the text names the flag, its value and the expected value."""


class Integer(flags.ArgumentParser):
    """An int of at least `least`, and of a size that something can have."""

    def __init__(self, least: int = 1):
        self.least = least

    def parse(self, argument: str) -> int:
        try:
            value = int(argument)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= MOST:
            bound = f"most {MOST}" if value > MOST else f"least {self.least}"
            raise ValueError(f"it must be an integer of at {bound}")
        return value


class Number(flags.ArgumentParser):
    """A finite number."""

    def parse(self, argument: str) -> float:
        try:
            value = float(argument)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError("it must be a number")
        return value


class Choice(flags.ArgumentParser):
    """One of some words."""

    def __init__(self, words: Sequence[str]):
        self.words = tuple(words)

    def parse(self, argument: str) -> str:
        if argument not in self.words:
            raise ValueError(f"it must be one of {', '.join(self.words)}{did_you_mean(argument, self.words)}")
        return argument


class Switch(flags.BooleanParser):
    """True or false, as --name=true, or shorter --name and --noname."""

    def parse(self, argument: str | int) -> bool:
        try:
            return super().parse(argument)
        except ValueError:
            raise ValueError("it must be true or false") from None


def define_integer(values: flags.FlagValues, name: str, default: int | None, text: str, least: int = 1,
                   short_name: str | None = None) -> None:
    flags.DEFINE(Integer(least), name, default, text, flag_values=values, short_name=short_name)


def define_number(values: flags.FlagValues, name: str, default: float | None, text: str) -> None:
    flags.DEFINE(Number(), name, default, text, flag_values=values)


def define_choice(values: flags.FlagValues, name: str, default: str | None, text: str,
                  words: Sequence[str]) -> None:
    flags.DEFINE(Choice(words), name, default, f"{', '.join(words)}: {text}", flag_values=values)


def define_switch(values: flags.FlagValues, name: str, text: str, short_name: str | None = None) -> None:
    flags.DEFINE_boolean(name, False, text, flag_values=values, short_name=short_name)
    values[name].parser = Switch()


def define_sizes(values: flags.FlagValues, **default: int) -> None:
    """Defines the flags for the sizes of a MoE-FFN on a mesh."""
    for name, text in (("ep", "expert-parallel ranks"), ("tokens", "tokens of each rank"), ("hidden", "hidden size"),
                       ("intermediate", "intermediate size of an expert"), ("experts", "experts of all ranks"),
                       ("top_k", "experts of each token")):
        define_integer(values, name, default[name], text)


def define_limit(values: flags.FlagValues) -> None:
    define_number(values, "rank_capacity_factor", None, "room of a rank, by limit_rows, over the rows of balanced experts")


def check_limit(o: flags.FlagValues) -> None:
    factor = o.rank_capacity_factor
    check_flag(factor is None or factor > 0, "rank_capacity_factor", factor, "a positive number")


def define_dtype(values: flags.FlagValues, default: str = "float32") -> None:
    define_choice(values, "dtype", default, "of rows and expert weights; routing weights are float32", FLOATS)


def check_sizes(o: Options) -> None:
    """Raises UsageError where the sizes do not fit each other, or no taskflow can hold them."""
    check_flag(o.experts % o.ep == 0, "experts", o.experts, f"a multiple of --ep, which is {o.ep}")
    check_flag(o.top_k <= o.experts, "top_k", o.top_k, f"at most --experts, which is {o.experts}")
    check_flag(o.ep <= MOST_RANKS, "ep", o.ep, f"at most {MOST_RANKS}")
    check_flag(o.experts <= MOST_EXPERTS, "experts", o.experts, f"at most {MOST_EXPERTS}")
    for name, share in (("tokens", o.top_k), ("hidden", o.experts // o.ep), ("intermediate", max(2, o.experts // o.ep))):
        size, most = getattr(o, name), MOST_ROWS // share
        check_flag(size <= most, name, size, f"at most {most} with these experts")


def sizes(o: Options) -> dict[str, int]:
    return {name: getattr(o, name) for name in ("ep", "tokens", "hidden", "intermediate", "experts", "top_k")}


def check_flag(condition: bool, name: str, got: object, expected: str) -> None:
    if not condition:
        raise UsageError(f"flag --{name}{' is not given' if got is None else f'={got}'}: it must be {expected}")


def is_writable(path: Path) -> bool:
    """Returns True if a file can be written to `path`; commands check this before their work, so that no result is lost."""
    try:
        path = path.resolve()
        is_new = not path.exists()
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK))  # a FIFO that nobody reads is none
        if is_new:
            path.unlink()
    except (OSError, ValueError):  # a name with a zero in it
        return False
    return True


def check_file(name: str, path: str | None, *suffixes: str) -> None:
    """Raises UsageError where a file is asked for that cannot be written or whose name does not end in one of the suffixes;
    before the work, that nothing is lost."""
    check_flag(not path or Path(path).suffix.lower() in suffixes, name, path,
               f"a file whose name ends in {' or '.join(suffixes)}")
    check_flag(path is None or is_writable(Path(path)), name, path, "a file that can be written")


def check_picture(out: str | None) -> None:
    """Raises UsageError unless a picture can be drawn there or none is asked for; before the work, that nothing is lost."""
    if out is None:
        return
    check_flag(importlib.util.find_spec("matplotlib") is not None, "out", out,
               "left out where matplotlib is not installed; pip install '.[plot]'")
    check_file("out", out, ".png", ".svg")


def report(o: Options, fields: object, text: str, is_ok: bool = True) -> int:
    """Prints what a command has found, as one JSON object with --json and else as text, and returns its exit status."""
    print(json.dumps(fields) if o.json else text)
    return 0 if is_ok else 1


def did_you_mean(word: str, known: Sequence[str], prefix: str = "") -> str:
    """Returns `; did you mean x?` for the nearest of `known`, or nothing."""
    near = nearest(word, known)
    return f"; did you mean {prefix}{near}?" if near else ""


def with_underscores(values: flags.FlagValues, args: Sequence[str]) -> list[str]:
    """Returns arguments with underscores in the names of flags; values stay as they are.

    Example:
        >>> values = flags.FlagValues()
        >>> define_sizes(values, ep=1, tokens=1, hidden=1, intermediate=1, experts=1, top_k=1)
        >>> with_underscores(values, ["--top-k=4", "--top-k", "--top-k", "--top-j"])
        ['--top_k=4', '--top_k', '--top-k', '--top-j']
    """
    defined = {name.replace("_", "-"): name for name in values}
    defined |= {f"no-{dashed}": f"no{name}" for dashed, name in defined.items() if values[name].boolean}
    out: list[str] = []
    is_value = False
    for i, arg in enumerate(args):
        if arg == "--" and not is_value:
            return [*out, *args[i:]]
        dashed, equals, value = arg.partition("=")
        name = defined.get(dashed.lstrip("-").replace("_", "-"))
        is_flag = name is not None and arg.startswith("-") and not is_value
        out.append(f"--{name}{equals}{value}" if is_flag else arg)
        is_value = is_flag and not equals and name is not None and name in values and not values[name].boolean
    return out


def split_flags(values: flags.FlagValues, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags at the beginning of the arguments, and all words from the first other one on.

    Example:
        >>> values = flags.FlagValues()
        >>> define_integer(values, "ranks", None, "how many", short_name="n")
        >>> split_flags(values, ["-n", "2", "--ranks=3", "train.py", "-n", "4"])
        (['-n', '2', '--ranks=3'], ['train.py', '-n', '4'])
    """
    end, is_value = 0, False
    for arg in args:
        if not is_value and not arg.startswith("-"):
            break
        name = arg.lstrip("-").replace("-", "_")
        is_value = not is_value and name in values and not values[name].boolean
        end += 1
    return list(args[:end]), list(args[end:])


def parse(values: flags.FlagValues, args: Sequence[str], positional: Sequence[str] = ()) -> flags.FlagValues:
    """Parses all of `args`, words that are no flags into the `positional` ones; UsageError for the first that is wrong."""
    values.set_gnu_getopt(True)
    try:
        rest = values(["hpmoe", *with_underscores(values, args)])[1:]
        for name in positional[:len(rest)]:
            values[name].parse(rest.pop(0))
    except flags.UnrecognizedFlagError as error:
        near = did_you_mean(error.flagname.replace("-", "_"), list(values), "--")
        raise UsageError(f"unknown flag --{error.flagname}{near}") from None
    except flags.Error as error:
        text = str(error).splitlines()[0]
        raise UsageError(text[:1].lower() + text[1:]) from None
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}; options are flags, such as --{next(iter(values))}")
    return values


@contextlib.contextmanager
def grouped(values: flags.FlagValues) -> Iterator[None]:
    """Puts the flags that are defined inside the block into GROUP."""
    before = set(values)
    yield
    for name in set(values) - before:
        values.register_flag_by_module(GROUP, values[name])


def names_of_group(values: flags.FlagValues) -> set[str]:
    """Returns the names of the flags in GROUP."""
    return {f.name for f in values.flags_by_module_dict().get(GROUP, [])}


def flags_text(values: flags.FlagValues) -> str:
    """Returns a help text with a line for each flag: a command's own, then those that commands share, under GROUP."""
    known, common = [values[name] for name in values if len(name) > 1], names_of_group(values)
    left = {f.name: f"--{f.name}" if f.boolean or f.default is None else f"--{f.name}={f.default}" for f in known}
    indent = max(map(len, left.values())) + 4
    lines = {f.name: textwrap.fill(f.help, MOST_COLUMNS, initial_indent=f"  {left[f.name]}".ljust(indent),
                                   subsequent_indent=" " * indent) for f in known}
    own = [line for name, line in lines.items() if name not in common]
    shared = [line for name, line in lines.items() if name in common]
    return "\n".join([*own, *(["", GROUP, *shared] if shared else [])])
