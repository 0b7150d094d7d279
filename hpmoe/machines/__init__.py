"""Machines that programs are planned for: the class, presets, and the measured model of this CPU."""
