"""Cells: the parts of a mixture-of-experts layer with their Parameters, named and laid out as MindFormers' PyNative.

Example:
    >>> import mindspore as ms, hpmoe
    >>> layer = hpmoe.nn.MoELayer(hidden_size=16, moe_ffn_hidden_size=8, num_moe_experts=4, moe_router_topk=2)
    >>> layer(ms.ops.ones((2, 3, 16))).shape
    (2, 3, 16)
"""

from hpmoe.nn.activations import clamped_swiglu as clamped_swiglu, gpt_oss_swiglu as gpt_oss_swiglu, relu2 as relu2
from hpmoe.nn.expert_shards import shard_experts as shard_experts, unshard_experts as unshard_experts
from hpmoe.nn.grouped_mlp import GroupedMLP as GroupedMLP
from hpmoe.nn.hugging_face import load_hugging_face as load_hugging_face, save_hugging_face as save_hugging_face
from hpmoe.nn.hugging_face_options import hugging_face_options as hugging_face_options
from hpmoe.nn.lora import add_lora as add_lora, load_lora as load_lora, merge_lora as merge_lora, save_lora as save_lora
from hpmoe.nn.moe_layer import MoELayer as MoELayer
from hpmoe.nn.shard_files import latest_shards as latest_shards
from hpmoe.nn.sharded_checkpoints import load_shards as load_shards, save_shards as save_shards
from hpmoe.nn.top_k_router import TopKRouter as TopKRouter

__all__ = ["GroupedMLP", "MoELayer", "TopKRouter", "add_lora", "clamped_swiglu", "gpt_oss_swiglu", "hugging_face_options",
           "latest_shards", "load_hugging_face", "load_lora", "load_shards", "merge_lora", "relu2", "save_hugging_face",
           "save_lora", "save_shards", "shard_experts", "unshard_experts"]
