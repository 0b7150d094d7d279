"""The target "ascend": the Ascend kernel on the NPU of this process."""
