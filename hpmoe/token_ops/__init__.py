"""Token operators with the semantics of CANN's: tokens' rows to their experts' places and back."""

from hpmoe.token_ops.exchange import exchange as exchange, exchange_back as exchange_back
from hpmoe.token_ops.init_routing import init_routing as init_routing
from hpmoe.token_ops.permute import permute as permute, unpermute as unpermute
from hpmoe.token_ops.permute_with_ep import permute_with_ep as permute_with_ep, unpermute_with_ep as unpermute_with_ep
