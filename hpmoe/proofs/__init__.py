"""Proofs that a Taskflow is a correct schedule, whatever the routing."""
