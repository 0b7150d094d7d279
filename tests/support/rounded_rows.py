"""References by hand for quantised rows and weights, and for their products."""

import ml_dtypes
import numpy as np

import hpmoe

LARGEST = {"int8": 127, "float8_e4m3fn": 448, "mxfp8": 448}


def rounded_by_hand(row, dtype="int8", scale=None):
    """A row as it arrives, block by block; elements of eight bits by ml_dtypes."""
    out, width = np.empty(len(row), np.float32), 32 if dtype == "mxfp8" else scale or len(row)
    for start in range(0, len(row), width):
        x = row[start:start + width].astype(np.float32)
        largest = np.float32(np.abs(x).max())
        if not np.isfinite(x).all():
            out[start:start + width] = np.nan
            continue
        s = largest / np.float32(LARGEST[dtype])
        if dtype == "mxfp8":
            exponent = np.floor(np.log2(np.float64(largest))) - 8 if largest else -127
            s = np.float32(2.0 ** max(-127, exponent))
        scaled = np.clip(x / s if s else np.zeros_like(x), -LARGEST[dtype], LARGEST[dtype])
        q = np.round(scaled) if dtype == "int8" else scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        out[start:start + width] = q * s
    return out


def rounded_rows(x, options):
    with np.errstate(over="ignore"):
        return np.apply_along_axis(rounded_by_hand, -1, x, **options)


def rounded_weight(w, dtype="int8"):
    """Weights [..., K, N], each column rounded as a row is."""
    return rounded_rows(w.swapaxes(-1, -2), {"dtype": dtype}).swapaxes(-1, -2)


def multiplied(x, ids, w, scale, transposed=False, **options):
    """A layer of one product by quantised weights."""
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=w.shape[0])
    return hpmoe.combine(hpmoe.grouped_matmul(rows, w.swapaxes(1, 2) if transposed else w, route, scale=scale, **options),
                         route)


def scaled_products(rows, ids, numbers, scale, cotangent):
    """The output of `multiplied` and the gradients of its rows and scales, from weights as numbers, token by token."""
    out, dx, d_scale = np.zeros(cotangent.shape), np.zeros(rows.shape), np.zeros(scale.shape)
    for r, t in np.ndindex(rows.shape[:2]):
        if ids[r, t, 0] >= 0:
            owner, e = divmod(int(ids[r, t, 0]), numbers.shape[1])
            product = rows[r, t] @ numbers[owner, e]
            out[r, t] = product * scale[owner, e]
            dx[r, t] = numbers[owner, e] @ (cotangent[r, t] * scale[owner, e])
            d_scale[owner, e] += cotangent[r, t] * product
    return out, dx, d_scale
