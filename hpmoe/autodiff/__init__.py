"""Differentiation of programs."""
