"""The rules by which the default schedule orders tasks, from where rows are likely to come and to go."""
