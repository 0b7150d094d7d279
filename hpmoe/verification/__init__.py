"""Proves that a Taskflow is a correct schedule for every routing.

verify                                  what is proved, one thing after the other
well_formed, fingerprint                tables and operations are what they were made as
op_rules                                operations are what their definitions allow, on operands that fit, for all units
regions, row_sets                       what tasks touch is there, written once, and nothing unwritten is read
tasks                                   each tile is a task, in one queue
derived                                 events, waits and signals are those that operations and queues need
cycles, shortest_cycle                  no task waits for itself, across ranks too; else which one does
order, fault                            what these share
"""
