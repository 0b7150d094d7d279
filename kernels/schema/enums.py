"""core/generated/enums.h: the enums of an image, and how many members each has."""

from enum import IntEnum

from hpmoe.kernels import protocol
from hpmoe.kernels.schema.cpp import header, lines_of

SHORT = {"Rows", "Cols", "Amount"}  # stored in 16 bits


def text() -> str:
    """Returns the header."""
    return header("The enums of an image; see protocol.py and hpmoe/tile_ops.", ["<cstdint>"],
                  "\n".join(map(_enum, protocol.ENUMS)))


def _enum(enum: type[IntEnum]) -> str:
    bits = 16 if enum.__name__ in SHORT else 32
    members = ",\n".join(lines_of([f"{member.name} = {member.value}" for member in enum], ", ", "  "))
    count = f"constexpr int32_t kNum{enum.__name__} = {len(enum)};"
    return f"enum class {enum.__name__} : int{bits}_t {{\n{members}\n}};\n{count}"
