"""Turns a Program into a Taskflow: tile operations, dependencies of tasks, and shared memory."""
