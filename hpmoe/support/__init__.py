"""Support for every other folder: errors, dtypes, locks, intervals, progress, loading of native libraries."""
