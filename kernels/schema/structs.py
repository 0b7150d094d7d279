"""core/generated/structs.h: the structs and constants of an image, each with asserts on its layout."""

import numpy as np

from hpmoe.costs.footprint import FOOTPRINT
from hpmoe.costs.work import WORK
from hpmoe.kernels import protocol
from hpmoe.kernels.schema.cpp import comment, header, members
from hpmoe.support.known import known

TYPES = {np.dtype("<i2"): "int16_t", np.dtype("<i4"): "int32_t", np.dtype("<i8"): "int64_t", np.dtype("<f4"): "float",
         np.dtype("<f8"): "double"}
SIMULATED = {
    "Footprint": """
        An array: parts first .. are its own. `fixed` bytes and `row` bytes for each row of the task (or moved by
        it). `whole`: of a UNIT or OF_EXPERT what the array has for each row, of a WEIGHT, of DENSE and of what is
        TOGETHER the bytes of the part, so that what several tasks touch of it in turn is known to be new, or 0.
        """,
    "Work": """
        A task of an op takes core_fixed + rows (in whole granules) * core_row microseconds of its worker, one of at
        most skinny_rows rows, where that is above 0, the same of few_fixed and few_row, or none for no rows at all;
        and core_fan for each row that experts have of tokens that came once. Of a transfer the rows are those that
        it moves, with link_row bytes each; where these come in is `landing`, whose `row` is 0 where that is not
        known.
        """,
}
ABOUT = """
    The packed image: what the host writes and a persistent kernel reads, on a CPU and on an Ascend device. It
    is one little-endian blob, the header first, every section 64-byte aligned. One image serves all ranks; the rank
    is an argument of a launch.
    """


def text() -> str:
    """Returns the header."""
    constants = "\n".join(f"constexpr int32_t k{name} = {value};  // {why}" for name, value, why in protocol.CONSTANTS)
    words = f"{comment(protocol.TASK_ABOUT)}\nusing TaskWord = uint32_t;"
    structs = {**protocol.DTYPES, "Footprint": FOOTPRINT, "Work": WORK}
    names = {dtype: name for name, dtype in structs.items()}
    made = [_struct(name, dtype, names) for name, dtype in structs.items()]
    return header(ABOUT, ["<cstddef>", "<cstdint>", "", '"core/generated/enums.h"'], "\n\n".join([constants, words, *made]))


def _struct(name: str, dtype: np.dtype, names: dict[np.dtype, str]) -> str:
    fields = known(dtype.fields)
    typed = []
    for field, (kind, *_) in fields.items():
        base, shape = kind.subdtype or (kind, ())
        typed.append((TYPES.get(base) or names[base], field + "".join(f"[{n}]" for n in shape)))
    last, (_, offset, *_) = list(fields.items())[-1]
    return (f"{comment({**protocol.ABOUT, **SIMULATED}[name])}\nstruct {name} {{\n{members(typed)}\n}};\n"
            f'static_assert(sizeof({name}) == {dtype.itemsize} && offsetof({name}, {last}) == {offset}, "as in Python");')
