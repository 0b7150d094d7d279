"""Operators on tokens' rows, beside dispatch and combine; a layer of Megatron or MindFormers is written with them.

    permute, unpermute: rows to their experts' places on one rank, and back
    exchange, exchange_back: permuted rows to the ranks of their experts, and back
    permute_with_ep, unpermute_with_ep, init_routing: the same in the form of CANN's operators
    rms_norm_rows: RMSNorm of each row
"""

from hpmoe.primitives.rms_norm import rms_norm_rows as rms_norm_rows
from hpmoe.token_ops.exchange import exchange as exchange, exchange_back as exchange_back
from hpmoe.token_ops.init_routing import init_routing as init_routing
from hpmoe.token_ops.permute import permute as permute, unpermute as unpermute
from hpmoe.token_ops.permute_with_ep import permute_with_ep as permute_with_ep, unpermute_with_ep as unpermute_with_ep

__all__ = ["exchange", "exchange_back", "init_routing", "permute", "permute_with_ep", "rms_norm_rows", "unpermute",
           "unpermute_with_ep"]
