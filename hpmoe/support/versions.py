"""Versions of installed packages. Importing this warns of a MindSpore that is newer than what hpmoe is tested with."""

from __future__ import annotations

import importlib.util
import re
import warnings
from importlib import metadata
from pathlib import Path

from hpmoe.support.known import known

MINDSPORE = (2, 10)  # the newest that is tested


def version(package: str) -> str | None:
    """Returns the version of an installed package, or None if pip does not know it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version without zeros at the end, so that 2 equals 2.0.

    Example:
        >>> numbers("2.10.0rc1"), numbers("2")
        ((2, 10), (2,))
    """
    parts = [int(n) for n in known(re.match(r"\d*(?:\.\d+)*", version)).group().split(".") if n]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def untested_mindspore() -> str:
    """Returns a sentence if the installed MindSpore is newer than the tested ones, else ""."""
    found = version("mindspore")
    if found is None or numbers(found)[:len(MINDSPORE)] <= MINDSPORE:
        return ""
    return f"MindSpore {found} is installed; hpmoe is tested with {'.'.join(map(str, MINDSPORE))}"


def check_installed(package: Path) -> None:
    """Raises ImportError if the package is the source folder of a clone, which has transforms and kernels beside it.

    `pip install .` copies hpmoe elsewhere; Python started in the clone imports the folder hpmoe that it finds there.
    """
    clone = package.parent
    if importlib.util.find_spec("hpmoe.kernels") is None and (clone / "pyproject.toml").is_file():
        raise ImportError(f"import hpmoe: found the source folder {package}, which has no hpmoe.kernels; expected the "
                          f"installed package. Start Python outside of {clone}, or install with pip install -e {clone}")


check_installed(Path(__file__).parents[1])
__version__ = version("hpmoe") or "unknown"

if _untested := untested_mindspore():
    warnings.warn(_untested, UserWarning, stacklevel=3)  # where hpmoe is imported, whose __init__ imports this
