"""The target "cpu": the queues of all ranks, served by threads of this process."""
