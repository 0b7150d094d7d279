"""Calling a function at any stage of the chain: staged, on all ranks, under autograd and in compiled graphs."""
