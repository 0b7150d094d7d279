"""Finds and loads the package's compiled libraries."""

import ctypes
from pathlib import Path


def find_library(folder, pattern):
    """The path of the compiled library in `folder`. Raises ImportError when it has not been built."""
    found = sorted(Path(folder).glob(pattern))
    if found:
        return found[0]
    raise ImportError(
        f"hpmoe's native library is not beside {folder}: install the package with pip (it needs a C++17 compiler), "
        "or in a source tree run `python -m hpmoe.kernels.build_native`"
    )


def load_library(path, version_name, version, signatures):
    """Loads the library at `path`, checks that its function `version_name` returns `version`, and declares its functions.

    `signatures` maps each name to (result type, list of argument types). Calls release the GIL.
    """
    library = ctypes.CDLL(str(path))
    if not hasattr(library, version_name) or getattr(library, version_name)() != version:
        raise ImportError(
            f"hpmoe's native library {path.name} is older than its Python code: install the package again, or "
            "in a source tree run `python -m hpmoe.kernels.build_native`"
        )
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def address(array):
    """Where an array's values begin; quicker than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]
