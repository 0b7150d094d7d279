"""Composable transforms that turn a pure MoE-FFN written with MindSpore into one persistent kernel."""
