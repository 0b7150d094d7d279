"""Calls of functions at any stage of the chain; see README.md for the way of a call.

transform, spmd                             make callables of callables
staged_function, graph_mode                 a callable, called by Python or by MindSpore's graph compiler
running                                     arguments in, results out; the operation of autograd
backend, array_, process_, device_backend   the protocol of what runs calls, and its implementations
graph_operators, array_graph, device_graph  the operators of a call in a compiled graph
plans, lowering, cached_plans, plan_key       plans: cached, made, kept in files
one_call, arguments, planned_rows           one call, its arguments, and the rows that it is planned for
exchanged, rank_arrays                      messages between processes; arrays of all ranks
staged, rewrite, targets                    a function and its chain, as data, and what launches its kernels
"""
