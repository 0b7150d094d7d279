"""The kernels in a profiler's table: op_summary_*.csv of msprof, or kernel_details.csv of the profiler in a framework."""

from __future__ import annotations

import csv
import decimal
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpmoe.support.errors import ArgumentError, check_argument

if TYPE_CHECKING:
    import _csv

WHO = "hpmoe calibrate"
MOST_KERNELS = 2**20  # launches of a file; each takes about 400 bytes
COLUMNS = {  # what each is called in the two files
    "kind": ("OP Type", "Type"), "unit": ("Task Type", "Accelerator Core"),
    "start": ("Task Start Time(us)", "Start Time(us)"), "us": ("Task Duration(us)", "Duration(us)"),
    "inputs": ("Input Shapes",), "input_dtypes": ("Input Data Types",), "outputs": ("Output Shapes",)}
OPTIONAL = {
    "output_dtypes": ("Output Data Types",), "device": ("Device_id",), "stream": ("Stream ID",), "blocks": ("Block Dim",),
    "vectors": ("Mix Block Dim",), "aic_us": ("aicore_time(us)", "aic_time(us)"), "aic_cycles": ("aic_total_cycles",),
    "vec_us": ("aiv_vec_time(us)",)}
ABSENT, NO_COUNT = ("", "N/A"), 2**16  # a count of cores that is not known is 2**32 - 1
DTYPES = {"BF16": "bfloat16", "BFLOAT16": "bfloat16", "FLOAT16": "float16", "HALF": "float16", "FP16": "float16",
          "FLOAT": "float32", "FLOAT32": "float32", "FP32": "float32"}
Shape = tuple[int, ...]


class Kernel(NamedTuple):
    """A launch of a kernel."""

    line: int  # line of the file
    kind: str  # type of the operator, as the file has it
    unit: str  # type of the cores that it ran on, as the file has it
    stream: str  # its device and its stream
    start_us: float  # since the first of the file
    us: float  # its time by the profiler
    blocks: int  # cores that it ran on; 0 if the file does not say so, as all numbers from here on
    vectors: int  # of a mix of both kinds the vector cores
    inputs: tuple[Shape, ...]  # the shape of what is absent, or a scalar, is ()
    dtypes: tuple[str, ...]
    outputs: tuple[Shape, ...]
    out_dtypes: tuple[str, ...]
    aic_us: float  # time on the matrix cores
    aic_cycles: float  # cycles of all of them
    vec_us: float  # time that a vector core computed


def read_kernels(path: Path) -> list[Kernel]:
    """The kernels of a file, in the order of their starts."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            kernels = [_kernel(row) for row in _rows(path, csv.reader(file, strict=True))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"{WHO}: {path} cannot be read as CSV: {error}") from None
    check_argument(bool(kernels), WHO, str(path), "a file without kernels", "one with a line for each launch")
    first = min(start for start, _ in kernels)
    return [kernel._replace(start_us=float(start - first)) for start, kernel in sorted(kernels, key=lambda pair: pair[0])]


class _Row(NamedTuple):
    where: str
    line: int
    values: dict[str, str]
    names: dict[str, str]

    def text(self, field: str) -> str:
        value = self.values.get(field, "").strip().strip('"').strip()
        return "" if value in ABSENT else value

    def number(self, field: str, is_needed: bool = False) -> decimal.Decimal:
        """Starts count microseconds since 1970 to the nanosecond, more digits than a float has."""
        text = self.text(field)
        try:
            value = decimal.Decimal(text) if text or is_needed else decimal.Decimal(0)
        except decimal.InvalidOperation:
            value = decimal.Decimal("NaN")
        is_right = value.is_finite() and 0 <= value < 10**18
        check_argument(is_right, WHO, self._column(field), repr(text), "a number from 0 to 1e18")
        return value

    def shapes(self, field: str) -> tuple[Shape, ...]:
        text = self.text(field)
        found = _shapes(text)
        check_argument(found is not None, WHO, self._column(field), repr(text),
                       "shapes such as 4096,7168;7168,4096")
        return found or ()

    def _column(self, field: str) -> str:
        return f"{self.where}, line {self.line}, {self.names[field]}"


def _rows(path: Path, lines: _csv.Reader) -> Iterator[_Row]:
    header = [name.strip() for name in next(lines, [])]
    place: dict[str, int] = {}
    for field, names in {**COLUMNS, **OPTIONAL}.items():
        found = next((header.index(name) for name in names if name in header), None)
        check_argument(found is not None or field in OPTIONAL, WHO, f"{path}, line 1",
                       f"without a column {' or '.join(names)}",
                       "the header of msprof's op_summary_*.csv, or of a framework's kernel_details.csv")
        if found is not None:
            place[field] = found
    names = {field: header[at] for field, at in place.items()}
    count = 0
    for cells in filter(None, lines):
        line, count = lines.line_num, count + 1
        check_argument(len(cells) == len(header), WHO, f"{path}, line {line}", f"of {len(cells)} columns",
                       f"of {len(header)}, as the header")
        check_argument(count <= MOST_KERNELS, WHO, str(path), f"of more than {MOST_KERNELS} kernels",
                       f"of at most {MOST_KERNELS}; profile fewer steps")
        yield _Row(str(path), line, {field: cells[at] for field, at in place.items()}, names)


def _kernel(row: _Row) -> tuple[decimal.Decimal, Kernel]:
    blocks, vectors, aic_us, aic_cycles, vec_us = (
        float(row.number(field)) if field in row.names else 0.0
        for field in ("blocks", "vectors", "aic_us", "aic_cycles", "vec_us"))
    return row.number("start", True), Kernel(
        row.line, row.text("kind"), row.text("unit"), f"{row.text('device')}.{row.text('stream')}", 0.0,
        float(row.number("us", True)), int(blocks if blocks < NO_COUNT else 0), int(vectors if vectors < NO_COUNT else 0),
        row.shapes("inputs"), _dtypes(row.text("input_dtypes")), row.shapes("outputs"), _dtypes(row.text("output_dtypes")),
        aic_us, aic_cycles, vec_us)


@functools.lru_cache(maxsize=4096)
def _shapes(text: str) -> tuple[Shape, ...] | None:
    """None where the text is not of shapes."""
    out = []
    for part in text.split(";") if text else ():
        sizes = [size.strip() for size in part.split(",") if size.strip()]
        if not all(size.isdecimal() and size.isascii() for size in sizes):
            return None
        out.append(tuple(map(int, sizes)))
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def _dtypes(text: str) -> tuple[str, ...]:
    """Returns dtypes by hpmoe's names, where they exist."""
    names = [part.strip().upper().removeprefix("DT_") for part in text.split(";")]
    return tuple(DTYPES.get(name, name.lower()) for name in names)
