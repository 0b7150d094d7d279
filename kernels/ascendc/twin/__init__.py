"""The target "ascend-twin": the Ascend kernel executed on an emulated NPU."""
