"""The two levels of IR, Program and Taskflow: their tables, texts, limits, and layout for one routing. Internal: a transform
of one's own imports hpmoe.rewriting.
"""

from hpmoe.ir import program_text, taskflow_text  # noqa: F401  how the two print
