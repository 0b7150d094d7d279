"""Proves that a Taskflow is a correct schedule, whatever the routing.

verify                                  what is proved, one thing after the other
well_formed, fingerprint, canonicalize  tables and operations are what they were made as
tasks, regions                          each tile is a task in one queue; what tasks touch is there, and written once
events, counting                        signals add up to thresholds
transitive_reduction, happens_before,   waits that are missing follow from others
    before, facts
cycles                                  no task waits for itself, across ranks too
order, slot_experts, rows, meeting, fault   what these share
"""
