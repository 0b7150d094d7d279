"""Writes kernels/core/generated, the C++ side of the definitions of tile operations and of images."""
