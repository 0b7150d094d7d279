"""Callable-to-callable transforms: each takes a function and returns one that computes the same."""

if __name__ != "hpmoe.transforms":
    raise ImportError(f"{__name__!r} is a source folder of hpmoe: import hpmoe.transforms instead")
