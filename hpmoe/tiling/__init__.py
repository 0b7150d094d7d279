"""From a Program to a Taskflow: tile operations, which tasks wait for which, and what shares memory."""
