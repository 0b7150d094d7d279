"""All families of tile operations: whoever imports this knows every one."""

from hpmoe.tile_ops import (
    axes as axes,
    columns as columns,
    draws as draws,
    elementwise as elementwise,
    guards as guards,
    matmuls as matmuls,
    quantized as quantized,
    quantized_matmuls as quantized_matmuls,
    reductions as reductions,
    tokens as tokens,
    transfers as transfers,
)
