"""Bring-up of an NPU: a ladder of checks, from one launch to whole layers on all ranks, and the rates of what it ran on."""
