"""Routing of rows: capacity, placement of copies, balance, slots, and the reference of the kernel's prologue."""
