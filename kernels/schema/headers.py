"""Generated headers by file name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from hpmoe.kernels.schema import bodies, enums, params, rules, shapes, structs

FOLDER = Path(__file__).parents[1] / "core" / "generated"
HEADERS: Mapping[str, Callable[[], str]] = {
    "enums.h": enums.text, "structs.h": structs.text, "params.h": params.text, "rules.h": rules.text,
    "shapes.h": shapes.text, "cpu_bodies.h": bodies.cpu, "ascend_vector_bodies.h": bodies.ascend_vector,
    "ascend_cube_bodies.h": bodies.ascend_cube}


def write() -> None:
    """Writes every header that differs from its definitions."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in HEADERS.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text():
            path.write_text(text(), encoding="utf-8")
