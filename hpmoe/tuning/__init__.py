"""Tuning: hpmoe.autotune, the plans that it compares, and the trials that it keeps."""

from hpmoe.tuning.autotune import compare_plans as compare_plans
