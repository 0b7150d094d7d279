"""The commands of `hpmoe`, one file each: SUMMARY and NOTES are its help, `define` makes its flags, `run` runs it."""
