"""Costs of tile tasks on a machine: rules, estimates before there are tasks, and the bound of every schedule."""
