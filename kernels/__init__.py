"""What runs: the native runtime and its tile bodies."""

if __name__ != "hpmoe.kernels":
    raise ImportError(f"{__name__!r} is a source folder of hpmoe: import hpmoe.kernels instead")
