"""The native planner: questions about the order of tasks that NumPy cannot answer fast, in C++ behind a C ABI."""
