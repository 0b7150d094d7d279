"""Measuring this CPU for its Machine, through the task bodies that launches run, and how well the model then predicts."""
