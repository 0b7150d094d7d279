"""Kinds of routes, one class each: which rank a row goes to, and how many rows and slots there are."""
