"""`python -m hpmoe.kernels.schema` writes the headers again."""

from hpmoe.kernels.schema.headers import write

write()
