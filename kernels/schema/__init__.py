"""Generates kernels/core/generated, the C++ side of tile operations and images."""
