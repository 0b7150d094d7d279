"""core/generated/enums.h: the enums of an image, and how many members each has."""

from enum import IntEnum

from hpmoe.kernels import protocol
from hpmoe.kernels.schema.cpp import WIDTH, header, lines_of

SHORT = {"Rows", "Cols", "Amount"}  # stored in 16 bits


def text() -> str:
    """Returns the header."""
    counts = [f"kNum{enum.__name__} = {len(enum)}" for enum in protocol.ENUMS]
    return header("The enums of an image; see protocol.py and hpmoe/tile_ops.", ["<cstdint>"], "\n".join([
        *map(_enum, protocol.ENUMS), "", *(f"{line};" for line in lines_of(counts, ", ", "constexpr int32_t "))]))


def _enum(enum: type[IntEnum]) -> str:
    head = f"enum class {enum.__name__} : int{16 if enum.__name__ in SHORT else 32}_t {{"
    members = [f"{member.name} = {member.value}" for member in enum]
    line = f"{head} {', '.join(members)} }};"
    lines = ",\n".join(lines_of(members, ", ", "  "))
    return line if len(line) <= WIDTH else f"{head}\n{lines}\n}};"
