"""Calls of functions at any stage of the chain, from what a user writes down to what runs.

transform, spmd                     what makes callables of callables
staged_function, memory             such a callable: called, lowered, measured in bytes
graph_mode                          the same call where MindSpore's graph compiler meets it
running                             arguments in, results out
autograd, graph_operators           a call as an operation of autograd, and as an operator of a graph; one binding each
backend                             what runs calls; there are two
array_backend, array_graph, array_runs      on arrays of all ranks
device_backend, device_graph                on tensors of this rank's device
plans, one_call, arguments, planned_rows    what was traced and lowered, and for what
staged, rewrite                     a function and the rewrites of its IR, which are data
rank_arrays                         arrays of all ranks, from tensors and back
"""
