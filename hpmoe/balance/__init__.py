"""Monitors loads of experts, and balances them by moving experts between ranks and replicating hot ones.

What is here:
    LoadMonitor: tokens of each expert, by layer and step, and what a table of them says
    Balancer: places a layer's experts again every few steps
    physical_ids: ids of experts -> ids of their places
    move_experts, states_of: move weights and optimizer state
    workers_per_expert: how many workers each expert had in a run
"""

from hpmoe.balance.balancer import Balancer as Balancer, Move as Move
from hpmoe.balance.monitor import LoadMonitor as LoadMonitor, LoadRow as LoadRow
from hpmoe.balance.moving import move_experts as move_experts, physical_ids as physical_ids
from hpmoe.balance.optimizer_states import states_of as states_of
from hpmoe.balance.workers import workers_per_expert as workers_per_expert
