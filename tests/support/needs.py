"""Requirements of tests that a machine may lack; such a test is skipped, and pytest prints why."""

import pytest

from hpmoe.kernels.native import find_blas, ucx_fault


def has_amx(found):
    """found: what `use_amx` says, asked to use it."""
    if not found:
        pytest.skip("this CPU has no AMX, the matrix units of newer Intel Xeons, and their products are what is tested")


def has_onednn():
    if find_blas() is None:
        pytest.skip("the installed MindSpore bundles no oneDNN, whose products are what is tested")


def has_ucx():
    if ucx_fault():
        pytest.skip(f"UCX, which carries messages between hosts in this test, does not work here: {ucx_fault()}")
