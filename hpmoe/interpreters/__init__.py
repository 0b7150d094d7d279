"""Interpreters in NumPy: of a Program on all ranks, and of a Taskflow in any legal order."""
