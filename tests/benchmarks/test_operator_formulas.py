"""Closed formulas of single kernels: limits, laws, and predictions of measured times that no constant was fitted to."""

import dataclasses

import numpy as np
import predict_operators as benchmark
import pytest
from command_line import run_script
from operator_formulas import fused_us, matmul_us, moe_ffn_us

import hpmoe
from hpmoe.machines.hardware import Operators

A3 = hpmoe.machines.ascend_a3
SIZES = 1, 17, 128, 129, 1000, 4096
BETTER = {"operators.overlap": 2, "operators.row_overlap": 2, "operators.read_share": 1.1, "operators.reuse_bytes": 2,
          "operators.reuse_bytes_per_us": 2, "operators.dequantize_bytes_per_us": 2}  # others are costs


def test_large_products_take_their_multiplications():
    """And products of one row the time that memory needs for the weights, both besides the fixed time."""
    n = 8192
    flops_us = 2 * n**3 / (A3.num_aic * A3.cube.rate("bfloat16"))
    (us,) = matmul_us(A3, n, n, n)
    assert flops_us < us < 1.1 * flops_us
    (us,) = matmul_us(A3, 1, 4 * n, n)
    weights_us = 2 * 4 * n * n / (A3.memory.bytes_per_us * A3.operators.read_share)
    assert weights_us < us < 1.05 * weights_us + A3.operators.matmul_us


def test_more_of_a_product_takes_no_less():
    for quantized in (False, True):
        for grown in ("rows", "cols", "inner"):
            sizes = {"rows": 64, "cols": 2048, "inner": 2048, grown: np.array(SIZES)}
            us = matmul_us(A3, **sizes, quantized=quantized)
            assert (np.diff(us) >= -0.03 * us[:-1]).all(), (quantized, grown)


def test_every_constant_of_operators_counts():
    """A better constant is felt by one of the kernels, and makes no kernel slower."""
    def times(machine):
        rows = np.array([300, 100, 3, 0])
        products = [matmul_us(machine, m, n, k, q, 8) for m, n, k in ((4, 512, 512), (9999, 8192, 16384)) for q in (0, 1)]
        layers = [moe_ffn_us(machine, rows, 1024, 512, 800, 100, q) for q in (False, True)]
        return np.array([*map(float, np.ravel(products)), *layers])
    before = times(A3)
    for field in dataclasses.fields(Operators):
        if field.name == "combine_share":  # of exchanges that benchmarks simulate
            continue
        name = f"operators.{field.name}"
        after = times(A3.replace({name: A3[name] * BETTER.get(name, 0.5)}))
        assert (after <= before * (1 + 1e-9)).all() and (after < before).any(), name


def test_a_fused_kernel_reads_weights_of_experts_with_rows():
    rows = np.zeros(32, int)
    empty = fused_us(A3, rows, 6144, 2048, 8)
    assert empty == A3.host.launch_us + A3.host.prologue_us + 32 * A3.host.expert_us
    rows[:16] = 1
    half = fused_us(A3, rows, 6144, 2048, 8) - empty
    rows[:] = 1
    assert fused_us(A3, rows, 6144, 2048, 8) - empty == pytest.approx(2 * half, rel=0.01)


def test_measured_operators_are_predicted_within_the_goals():
    """Rows that no constant was fitted to, which are most of them."""
    table = benchmark.read(benchmark.DATA)
    is_judged = np.array([not benchmark.is_of_fit(row) for row in table])
    found = benchmark.predictions(A3, table)
    rows = benchmark.summary(table, np.where(is_judged, "judged", "fitted"), *found)
    judged = {(row["kind"], row["dtype"], row["least_tokens"]): row for row in rows if row["part"] == "judged"}
    assert len(table) == 1589 and is_judged.sum() > 890
    for of, most in {("matmul", "bf16", 0): 0.10, ("matmul", "w8a8", 0): 0.12, ("moe_ffn_of_one_rank", "both", 64): 0.08,
                     ("fused_dispatch_ffn_combine", "both", 0): 0.08}.items():
        assert judged[of]["median"] <= most, judged[of]
    (everything,) = (row for row in rows if row["kind"] == "all" and row["part"] == "judged")
    assert 0.7 <= everything["inside_band"] <= 0.9 and everything["half_width"] <= 0.15


def test_a_file_of_measurements_is_checked(capsys, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("kind,dtype,M,N,K,us\nconvolution,bf16,1,1,1,5\n")
    status, _, err = run_script(capsys, benchmark, str(file))
    assert status == 2 and "'convolution'" in err and "matmul" in err
    file.write_text("kind,dtype,M,N,K,us\nmatmul,bf16,16,7168,4096,52.1\n")
    status, out, _ = run_script(capsys, benchmark, str(file))
    assert status == 0 and "| judged | matmul | bf16 | 1 |" in out and "fitted" not in out
