"""The table of Hugging Face model types: names and layouts of the arrays of a block, options, and fields of config.json.

One entry a type. `hugging_face_options`, `load_hugging_face`, `save_hugging_face` and the table of the page read it.
"""

from __future__ import annotations

from typing import NamedTuple

from hpmoe.nn.formats import Entries, Entry, apart, fused, shared
from hpmoe.support.cached_files import Fields

Names = dict[str, tuple[str, ...]]  # fields by option; configurations have one of them


class ModelType(NamedTuple):
    """A model type: layouts, fields and options."""

    models: str  # names of models, for the documentation
    # Layouts of checkpoints: first that of saved files, then that in memory in transformers and of other files it loads.
    formats: tuple[Entries, ...]
    fields: Names  # for each option of MoELayer, the names of the field of config.json that sets the option
    options: Fields  # options of MoELayer that do not depend on config.json
    # Fields of config.json whose product is the width of the shared expert. "!": every model of the type has one; "?": a
    # model without a shared expert has no arrays for it, not empty ones.
    shared: tuple[str, ...] = ()
    fixed: dict[str, tuple[object, ...]] = {}  # for fields of config.json that no option takes, what hpmoe supports
    activation: str = "swiglu"  # a name of `hugging_face_options.ACTIVATIONS`
    is_layer: bool = False  # the MoE block's prefix is that of the whole decoder layer: arrays of attention have it, too


_PROJECTIONS, _W = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")
_OF_ALL: Names = {
    "hidden_size": ("hidden_size", "d_model"),
    "num_moe_experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "moe_router_topk": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")}
_FINE: Names = {**_OF_ALL, "moe_ffn_hidden_size": ("moe_intermediate_size",)}
_COARSE: Names = {**_OF_ALL, "moe_ffn_hidden_size": ("intermediate_size",)}
_NORM: Names = {"norm_topk_prob": ("norm_topk_prob", "moe_renormalize")}
_SCALE: Names = {"moe_router_topk_scaling_factor": (
    "routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor",
    "moe_router_scaling_factor")}
_GROUPS: Names = {"moe_router_num_groups": ("n_group", "num_expert_group"), "moe_router_group_topk": ("topk_group",)}
_GROUPED: Names = {**_FINE, **_NORM, **_SCALE, **_GROUPS}
_NORMALIZED: Fields = {"norm_topk_prob": True}
_SIGMOID: Fields = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
_SHARED_N = ("n_shared_experts", "moe_intermediate_size")
_NUM_SHARED = ("num_shared_experts", "moe_intermediate_size")
_OF_V3: dict[str, tuple[object, ...]] = {
    "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_router_activation_func": ("sigmoid",)}


def _router(name: str = "gate.weight", bias: str = "", rows: str = "") -> Entries:
    found = (Entry(name, "router.weight"),)
    return (*found, Entry(bias, "expert_bias", rows=rows)) if bias else found


def _both(names: tuple[str, str, str], before: Entries, after: Entries = (), memory: Entries = ()) -> tuple[Entries, ...]:
    """Returns formats of files with an array for each expert, and of memory with one for all; `memory` precedes it there."""
    return (*before, *apart(*names), *after), (*(memory or before), *fused(), *after)


def _as_in_memory(formats: tuple[Entries, ...]) -> tuple[Entries, ...]:
    """Returns formats of a type whose files are as memory, and which is also loaded from an array for each expert."""
    apart, memory = formats
    return memory, memory, apart


_ROUTER_GATE = _router("router.gate.weight", "expert_bias")
_BIASED = _router(bias="gate.e_score_correction_bias")
_BESIDE_GATE = _router(bias="e_score_correction_bias")
_QWEN3 = _both(_PROJECTIONS, _router())
_SHARED_GATE = (*shared("shared_expert"), Entry("shared_expert_gate.weight", "shared_experts.shared_experts_gate.weight"))
_QWEN2 = _both(_PROJECTIONS, _router(), _SHARED_GATE)
_QWEN2_FIELDS = _FINE | _NORM
_WITH_GATE: Fields = {"use_shared_expert_gating": True}
_WIDTH = ("shared_expert_intermediate_size!",)
_V3 = _both(_PROJECTIONS, _BIASED, shared("shared_experts"))
_V2 = _both(_PROJECTIONS, _router(), shared("shared_experts"))
_V2_OPTIONS: Fields = {"norm_topk_prob": False, "moe_router_group_score": "largest"}
_V2_FIXED: dict[str, tuple[object, ...]] = {"topk_method": ("greedy", "group_limited_greedy"), "scoring_func": ("softmax",)}
_MIXTRAL = _both(_W, _router())
_GPT_OSS_ENDS = (Entry("router.weight", "router.weight"), Entry("router.bias", "router.bias"),
                 Entry("experts.down_proj_bias", "experts.bias2"))


def _gpt_oss(part: str) -> tuple[Entries, ...]:
    return ((*_GPT_OSS_ENDS, *fused(part=part, transposed=False),
             Entry("experts.gate_up_proj_bias", "experts.bias1", part)),)


_GRANITE_SHARED = shared("^shared_mlp", "input_linear", "input_linear", "output_linear")
_GRANITE = ((*_router("router.layer.weight"), *fused("input_linear.weight", "output_linear.weight"), *_GRANITE_SHARED),
            (*_router("router.weight"), *fused(), *_GRANITE_SHARED))
_GRANITE_WIDTH = ("shared_intermediate_size?",)
_CLASSIFIER = _router("router.classifier.weight", "router.e_score_correction_bias")
_LLAMA4 = (*_router("router.weight"), *fused(transposed=False), *shared("shared_expert"))
_ARIA_ENDS = (*_router("router.weight"), *shared("shared_experts"))
_NEMOTRON = (*_BIASED, *shared("shared_experts", gate=""))

MODELS: dict[str, ModelType] = {
    "afmoe": ModelType("Trinity", _both(_PROJECTIONS, _ROUTER_GATE, shared("shared_experts")),
                       _FINE | _SCALE, {**_SIGMOID, **_NORMALIZED}, _NUM_SHARED,
                       {"score_func": ("sigmoid",), "route_norm": (True,), "n_group": (1,), "topk_group": (1,)}),
    "aria": ModelType("Aria", ((*_ARIA_ENDS, *fused("experts.fc1.weight", "experts.fc2.weight", transposed=False)),
                              (*_ARIA_ENDS, *fused(transposed=False))), _COARSE, _NORMALIZED,
                      ("moe_num_shared_experts", "intermediate_size")),
    "axk2": ModelType("A.X K2", _V3, _FINE | _NORM | _SCALE, _SIGMOID, _SHARED_N,
                      {**_OF_V3, "n_group": (None, 1), "topk_group": (None, 1)}),
    "bailing_hybrid": ModelType(
        "Ling, Ring", _both(_PROJECTIONS, _router(bias="gate.expert_bias"), shared("shared_experts"), _BIASED), _GROUPED,
        _SIGMOID, _NUM_SHARED, {"score_function": ("sigmoid",)}),
    "beam": ModelType("Beam", _both(_PROJECTIONS, _BIASED), _GROUPED, _SIGMOID),
    "cohere2_moe": ModelType("Command A", _V2, _COARSE, _NORMALIZED, ("num_shared_experts?", "intermediate_size"),
                             {"expert_selection_fn": ("softmax",), "shared_expert_combination_strategy": ("sum",),
                              "norm_topk_prob": (True, False)}),
    "dbrx": ModelType("DBRX", ((*_router("router.layer.weight"),
                                Entry("experts.mlp.w1", "experts.weight1", "gate", True, "flat"),
                                Entry("experts.mlp.v1", "experts.weight1", "up", True, "flat"),
                                Entry("experts.mlp.w2", "experts.weight2", rows="flat")),),
                      _OF_ALL | {"moe_ffn_hidden_size": ("ffn_hidden_size",)}, _NORMALIZED,
                      fixed={"moe_normalize_expert_weights": (1,), "ffn_act_fn": ({"name": "silu"},)}),
    "deepseek_ocr2": ModelType("DeepSeek-OCR 2", _V2, _FINE | _SCALE | _GROUPS, _V2_OPTIONS, _SHARED_N, _V2_FIXED),
    "deepseek_v2": ModelType("DeepSeek-V2", _V2, _FINE | _SCALE | _GROUPS, _V2_OPTIONS, _SHARED_N,
                             {**_V2_FIXED, "norm_topk_prob": (False,)}),
    "deepseek_v3": ModelType("DeepSeek-V3, DeepSeek-R1", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "deepseek_v32": ModelType("DeepSeek-V3.2", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "deepseek_v4": ModelType(
        "DeepSeek-V4, layers without hash",
        _both(_W, _router(bias="gate.bias"), shared("shared_experts", *_W), _BIASED)[:1]
        + _both(_W, _BIASED, shared("shared_experts"))[1:],
        _FINE | _SCALE, {**_SIGMOID, **_NORMALIZED, "moe_router_score_function": "sqrtsoftplus"}, _SHARED_N,
        {"scoring_func": ("sqrtsoftplus",), "norm_topk_prob": (True,), "n_shared_experts": (1,),
         "topk_method": ("noaux_tc",)},
        "clamped_swiglu"),
    "dots1": ModelType("dots.llm1", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "dots3_note": ModelType("dots3 note, its text", _as_in_memory(_V3), _GROUPED, _SIGMOID,
                            ("n_shared_experts", "shared_experts_intermediate_size"), _OF_V3),
    "ernie4_5_moe": ModelType(
        "ERNIE 4.5", _both(_PROJECTIONS, _router(bias="moe_statics.e_score_correction_bias", rows="one"),
                           shared("shared_experts"),
                           _router(bias="gate.moe_statics.e_score_correction_bias", rows="one")),
        _FINE, {**_NORMALIZED, "moe_router_enable_expert_bias": True}, ("moe_num_shared_experts?", "moe_intermediate_size"),
        {"moe_norm_min": (1e-12,), "moe_use_aux_free": (True,), "moe_gate": ("topk",)}),
    "exaone_moe": ModelType("K-EXAONE", _both(_PROJECTIONS, _BESIDE_GATE, shared("shared_experts"), _BIASED), _GROUPED,
                            _SIGMOID, _NUM_SHARED, _OF_V3),
    "flex_olmo": ModelType("FlexOlmo", _QWEN3, _COARSE | _NORM, {}),
    "flint": ModelType("Flint", _both(_PROJECTIONS, _router(), shared("shared_expert")), _QWEN2_FIELDS,
                       {"moe_router_score_function": "sigmoid"}, _WIDTH),
    "glm4_moe": ModelType("GLM-4.5, GLM-4.6", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "glm4_moe_lite": ModelType("GLM-4.7-Flash", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "glm4v_moe": ModelType("GLM-4.5V", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "glm5_next": ModelType("GLM-5 Next", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3, "clamped_swiglu"),
    "glm_moe_dsa": ModelType("GLM-5", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "gpt_oss": ModelType("gpt-oss", _gpt_oss("alternating"), _COARSE, {**_NORMALIZED, "add_bias_linear": True},
                         activation="gpt_oss_swiglu"),
    "granitemoe": ModelType("Granite 3 MoE", _GRANITE, _COARSE, _NORMALIZED, _GRANITE_WIDTH),
    "granitemoe_swa": ModelType("Granite MoE SWA", _GRANITE[1:], _COARSE, _NORMALIZED, _GRANITE_WIDTH),
    "granitemoehybrid": ModelType("Granite 4", _GRANITE, _COARSE, _NORMALIZED, _GRANITE_WIDTH),
    "granitemoeshared": ModelType("Granite MoE shared", _GRANITE, _COARSE, _NORMALIZED, _GRANITE_WIDTH),
    "hunyuan_v1_moe": ModelType("Hunyuan A13B", _both(_PROJECTIONS, _router("gate.wg.weight"), shared("shared_mlp")),
                                _COARSE, _NORMALIZED, ("intermediate_size!",),
                                {"num_shared_expert": (1, [1]), "use_mixed_mlp_moe": (True,)}),
    "hy_v3": ModelType("Hunyuan 3", _both(_PROJECTIONS, _ROUTER_GATE, shared("shared_mlp"))[:1]
                       + _both(_PROJECTIONS, _BESIDE_GATE, shared("shared_experts"))[1:], _FINE | _SCALE,
                       {**_SIGMOID, **_NORMALIZED}, _NUM_SHARED, {"enable_moe_fp32_combine": (True,)}),
    "jamba": ModelType("Jamba", _both(_PROJECTIONS, _router("router.weight")), _COARSE, {"norm_topk_prob": False}),
    "jetmoe": ModelType("JetMoE, its feed-forward blocks",
                        ((*_router("router.layer.weight"), *fused("input_linear.weight", "output_linear.weight"),
                          Entry("bias", "output_bias")),),
                        _COARSE, {**_NORMALIZED, "add_output_bias": True}),
    "kimi_k2": ModelType("Kimi K2", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "kimi_linear": ModelType("Kimi Linear", _both(_W, _BIASED, shared("shared_experts")), _GROUPED, _SIGMOID, _NUM_SHARED,
                             {**_OF_V3, "use_grouped_topk": (True,)}),
    "laguna": ModelType("Laguna", _both(_PROJECTIONS, _router(bias="experts.e_score_correction_bias"),
                                        shared("shared_expert"))[:1] + _V3[1:],
                        _FINE | _SCALE, {**_SIGMOID, **_NORMALIZED}, _WIDTH, {"moe_router_logit_softcapping": (0,)}),
    "lfm2_moe": ModelType("LFM2-8B-A1B", _both(_W, _router(bias="expert_bias")), _FINE | _NORM | _SCALE,
                          {**_SIGMOID, "moe_router_norm_epsilon": 1e-6}, fixed={"use_expert_bias": (True,)}),
    "llama4": ModelType("Llama 4", (_LLAMA4,), _COARSE,
                        {"moe_router_score_function": "sigmoid", "norm_topk_prob": False, "moe_apply_probs_on_input": True},
                        ("intermediate_size!",)),
    "longcat_flash": ModelType(
        "LongCat-Flash", ((*_CLASSIFIER, *apart(*_PROJECTIONS, "padded")), (*_CLASSIFIER, *fused(rows="padded"))),
        _OF_ALL | _SCALE | {"moe_ffn_hidden_size": ("expert_ffn_hidden_size",),
                            "moe_num_zero_experts": ("zero_expert_num",)},
        {"norm_topk_prob": False, "moe_router_enable_expert_bias": True},
        fixed={"zero_expert_type": ("identity",), "norm_topk_prob": (False,)}),
    "mellum": ModelType("Mellum", _QWEN3, _FINE | _NORM, {}),
    "mimo_v2_flash": ModelType("MiMo-V2-Flash", _both(_PROJECTIONS, _BIASED), _GROUPED, _SIGMOID, fixed=_OF_V3),
    "minimax": ModelType("MiniMax-Text-01", _MIXTRAL, _COARSE, _NORMALIZED),
    "minimax_m2": ModelType("MiniMax-M2", _both(_W, _BESIDE_GATE), _COARSE, {**_SIGMOID, **_NORMALIZED},
                            fixed={"scoring_func": ("sigmoid",), "use_routing_bias": (True,)}),
    "minimax_m3_vl": ModelType(
        "MiniMax-M3", _both(_W, _BESIDE_GATE, shared("shared_experts"))[:1]
        + _both(_W, _BIASED, shared("shared_experts", "gate_up_proj", "gate_up_proj"))[1:], _COARSE | _SCALE,
        {**_SIGMOID, **_NORMALIZED}, ("shared_intermediate_size!",), _OF_V3, "gpt_oss_swiglu"),
    "mistral4": ModelType("Mistral 4", _V2[1:], _GROUPED, {}, _SHARED_N),
    "mistral_large4": ModelType("Mistral Large 4", ((*_router(), *apart(*_W), *shared("shared_experts", *_W)), _V2[1],
                                                    (*_router(), *apart(*_W), *shared("shared_experts"))),
                                _FINE | _SCALE | _GROUPS, _NORMALIZED, _SHARED_N, is_layer=True),
    "mixtral": ModelType("Mixtral", _MIXTRAL, _COARSE, _NORMALIZED),
    "nemotron_h": ModelType(
        "Nemotron 3", ((*_NEMOTRON, *apart("", "up_proj", "down_proj")),
                       (*_NEMOTRON, *fused("experts.up_proj", part=""))), _GROUPED, {**_SIGMOID, "gated_linear_unit": False},
        ("moe_shared_expert_intermediate_size!",), {"mlp_hidden_act": ("relu2",), "n_shared_experts": (1,)}, "relu2"),
    "olmoe": ModelType("OLMoE", _QWEN3, _COARSE | _NORM, {}),
    "openai_privacy_filter": ModelType("OpenAI privacy filter", _gpt_oss("both"), _COARSE,
                                       {**_NORMALIZED, "add_bias_linear": True}, activation="gpt_oss_swiglu"),
    "phimoe": ModelType("Phi-3.5-MoE", _both(_W, _router(), memory=_router("router.weight")), _COARSE,
                        {"moe_router_score_function": "sparsemixer", "norm_topk_prob": False},
                        fixed={"router_jitter_noise": (0.01,), "num_experts_per_tok": (2,),
                               "input_jitter_noise": (0, 0.01)}),
    "qwen2_moe": ModelType("Qwen1.5-MoE, Qwen2-MoE", _QWEN2, _QWEN2_FIELDS, _WITH_GATE, _WIDTH),
    "qwen3_5_moe": ModelType("Qwen3.5-MoE", _as_in_memory(_QWEN2), _FINE, {**_WITH_GATE, **_NORMALIZED}, _WIDTH),
    "qwen3_moe": ModelType("Qwen3-MoE", _QWEN3, _QWEN2_FIELDS, {}),
    "qwen3_next": ModelType("Qwen3-Next", _QWEN2, _QWEN2_FIELDS, _WITH_GATE, _WIDTH),
    "qwen3_omni_moe": ModelType("Qwen3-Omni, its thinker", _QWEN3, _QWEN2_FIELDS, {}),
    "qwen3_omni_moe_talker": ModelType("Qwen3-Omni, its talker", _QWEN2, _QWEN2_FIELDS, _WITH_GATE, _WIDTH),
    "qwen3_vl_moe": ModelType("Qwen3-VL-MoE", ((*_router(), *fused(transposed=False)), _QWEN3[1]), _FINE, _NORMALIZED),
    "qwen4_exp": ModelType("Qwen4 experimental", _as_in_memory(_QWEN2), _QWEN2_FIELDS, _WITH_GATE, _WIDTH),
    "solar_open": ModelType("Solar Open", _V3, _GROUPED, _SIGMOID, _SHARED_N, _OF_V3),
    "unlimited_ocr": ModelType("Unlimited OCR", _V2, _FINE | _SCALE | _GROUPS, _V2_OPTIONS, _SHARED_N, _V2_FIXED),
}

# Types with experts that no layer computes, and why.
REFUSED = {
    "axk1": "its block ends in a norm",
    "bamba": "its blocks are dense",
    "diffusion_gemma": "its router norms the hidden states and scales each expert",
    "doge": "its experts are rows of an embedding",
    "ernie4_5_vl_moe": "it has experts of texts and of pictures, chosen by the kind of a token",
    "gemma4": "its router norms the hidden states and scales each expert",
    "hy_v4": "only its routed experts clamp, the shared expert does not",
    "inkling": "its router weighs routed and shared experts together",
    "inkling2": "its experts cap gate and up by tanh",
    "kolibri1": "it chooses by the sum of logits and bias",
    "muse_spark": "its experts work on projected and normed hidden states",
    "nllb_moe": "it drops tokens beyond a capacity",
    "step3p7": "its experts clamp after the activation, by a limit of each layer",
    "switch_transformers": "it drops tokens beyond a capacity",
    "vitpose_backbone": "the dataset chooses its expert",
    "zaya": "its router is a network with a state that goes from layer to layer",
}

# Fields that change no output of a block, of all types.
IGNORED = frozenset("""
    _attn_implementation _name_or_path add_cross_attention architectures attention_bias attention_chunk_size
    attention_dropout attention_gate attention_multiplier attention_value_scale attn_config attn_implementation
    attn_layer_offset attn_layer_period attn_output_gate attn_scale attn_temperature_tuning attn_type_list auto_map
    aux_loss_alpha aux_loss_coef block_size bos_token_id chunk_size chunk_size_feed_forward classifier_dropout clip_qkv
    compress_rates compress_rope_theta conv_L_cache conv_bias conv_kernel decoder_sparse_step dense_intermediate_size
    dtype emb_pdrop embedding_multiplier eod_token_id eos_token_id ep_size expand expert_layer_offset expert_layer_period
    ffn_config ffn_hidden_size final_logit_softcapping first_k_dense_replace floor_scale full_attn_alpha_factor
    full_attn_beta_factor gated_norm_rank gating global_attn_every_n_layers hc_count hc_eps hc_lowrank hc_mult
    hc_sinkhorn_iters head_dim heads_per_ngram hidden_dropout hidden_size id2label index_block_size index_head_dim
    index_kpool index_kpool_always_select_tail index_local_blocks index_n_heads index_topk index_topk_blocks
    index_topk_freq index_topk_pattern indexer_budget indexer_compress_ratio indexer_head_dim indexer_kv_heads
    indexer_n_heads indexer_types initial_context_length initializer_range interleave_moe_layer_step intermediate_size
    intermediate_size_mlp is_decoder is_encoder_decoder kda_lower_bound kda_safe_gate kv_channels kv_lora_rank
    kv_source_layers label2id layer_group_size layer_norm_eps layer_norm_epsilon layer_rope_theta layer_types
    layers_block_type linear_attn_alpha_factor linear_attn_beta_factor linear_conv_kernel_dim linear_head_dim
    linear_key_head_dim linear_lower_bound linear_num_heads linear_num_key_heads linear_num_value_heads
    linear_value_head_dim lm_head_bias load_balance_coeff logit_scale logits_scaling make_ngram_vocab_size_divisible_by
    mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_dt_rank mamba_expand mamba_head_dim
    mamba_hidden_act mamba_n_groups mamba_n_heads mamba_num_heads mamba_proj_bias mamba_ssm_cache_dtype
    max_position_embeddings max_seq_len max_window_layers mlp_alpha_factor mlp_beta_factor mlp_layer_types
    mlp_only_layers model_max_length model_type moe_every_n_layers moe_intermediate_size moe_layer_end_index
    moe_layer_freq moe_layer_interval moe_layer_start_index moe_layers moe_loss_weight moe_num_shared_experts
    moe_router_use_sigmoid moe_shared_expert_overlap mscale mtp_layer_types mtp_layers_block_type mtp_loss_scaling_factor
    mtp_mlp_layer_types mtp_num_hidden_layers mtp_use_dedicated_embeddings mup_enabled n_groups n_heads n_layers
    n_shared_experts ngram_size ngram_vocab_size_base no_rope_layer_interval no_rope_layers norm_eps num_attention_heads
    num_attention_heads_per_layer num_dense_layers num_hidden_layers num_key_value_groups num_key_value_heads num_layers
    num_logits_to_keep num_mtp_modules num_nextn_predict_layers num_shared_experts number_of_conv_states o_groups
    o_lora_rank output_attentions output_gate_type output_hidden_states output_router_logits pad_token_id
    partial_rotary_factor per_layer_config ple_conv_kernel_size ple_embed_dim ple_layer_ids position_embedding_type
    prefix_dense_intermediate_size prefix_dense_sliding_window_pattern pretraining_tp problem_type q_lora_rank
    qk_head_dim qk_nope_head_dim qk_norm_type qk_rope_head_dim qkv_bias rescale_prenorm_residual resid_pdrop
    residual_in_fp32 residual_multiplier return_dict rms_norm_eps rope_interleave rope_local_base_freq rope_parameters
    rope_scaling rope_theta rotary_dim router_aux_loss_coef router_dtype router_z_loss_coef seed sep_token_id seq_aux
    short_conv_kernel_size sliding_window sliding_window_pattern split_ngram_parts ssm_state_size swa_num_key_value_heads
    swa_rope_theta tie_word_embeddings time_step_floor time_step_limit time_step_max time_step_min torch_dtype
    transformers_version unsloth_fixed unsloth_version use_associative_scan use_cache use_conv_bias use_grouped_mm
    use_mamba_kernels use_mambapy use_mtp use_qk_norm use_sliding_window v_head_dim vocab_size
""".split())
