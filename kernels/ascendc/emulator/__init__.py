"""The target "ascend-emulator": the Ascend kernel executed on an emulated NPU."""
