"""Blocks of transformers of every model type, small and of random weights, and their files."""

import contextlib
import importlib
import inspect
import json

SMALL = {
    "hidden_size": 16, "intermediate_size": 12, "moe_intermediate_size": 6, "expert_ffn_hidden_size": 6,
    "n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 3,
    "num_experts_per_token": 3, "moe_topk": 3, "moe_k": 3, "n_group": 4, "num_expert_group": 4, "topk_group": 2,
    "n_shared_experts": 2, "zero_expert_num": 4, "shared_expert_intermediate_size": 10, "shared_intermediate_size": 10,
    "shared_experts_intermediate_size": 10, "moe_shared_expert_intermediate_size": 10, "routed_scaling_factor": 1.7,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 11, "swiglu_limit": 0.6}
OTHERS = {  # fields of some types
    "axk2": {"n_group": None, "topk_group": None}, "deepseek_v2": {"topk_method": "group_limited_greedy"},
    "deepseek_ocr2": {"topk_method": "group_limited_greedy"}, "unlimited_ocr": {"topk_method": "group_limited_greedy"},
    "phimoe": {"num_experts_per_tok": 2}, "deepseek_v4": {"n_shared_experts": 1, "num_hidden_layers": 5},
    "cohere2_moe": {"num_shared_experts": 2, "shared_expert_combination_strategy": "sum"},
    "nemotron_h": {"n_shared_experts": 1, "num_hidden_layers": 52},
    "dbrx": {"ffn_config": {"hidden_size": 16, "ffn_hidden_size": 6, "moe_num_experts": 8, "moe_top_k": 3}},
    "granitemoehybrid": {"mamba_n_heads": 4}, "qwen3_omni_moe_talker": {"shared_expert_intermediate_size": 10}}
CONFIGS = {"kimi_k2": "deepseek_v3"}  # types that transformers computes by another's module
MODULES = {"qwen3_omni_moe_talker": "qwen3_omni_moe"}
# Conversions of whole models, by a model's class or type, of blocks whose own configuration has none.
CONVERSIONS = {"dots3_note": ("Dots3NoteTextModel",), "unlimited_ocr": ("UnlimitedOcrTextModel",),
               "qwen3_omni_moe_talker": ("qwen3_omni_moe",), "mistral_large4": ("mistral_large4", "mistral_large4_text")}
CLASSES = {"jetmoe": "JetMoeMoE", "qwen3_omni_moe": "ThinkerTextSparseMoeBlock",
           "qwen3_omni_moe_talker": "TalkerTextSparseMoeBlock", "gpt_oss": "MLP", "dots3_note": "TextMoE",
           "openai_privacy_filter": "MLP"}
PREFIX = {"granitemoe": "block_sparse_moe", "granitemoeshared": "block_sparse_moe", "granitemoehybrid": "block_sparse_moe",
          "granitemoe_swa": "block_sparse_moe", "jamba": "feed_forward", "lfm2_moe": "feed_forward",
          "llama4": "feed_forward", "nemotron_h": "mixer", "dbrx": "ffn"}
BESIDE = ("granitemoeshared", "granitemoehybrid", "granitemoe_swa")  # whose shared expert lies beside the block


def config_of(model_type, **given):
    """The configuration of a small model of a type."""
    from transformers import CONFIG_MAPPING
    name = CONFIGS.get(model_type, model_type)
    name = f"{name}_text" if f"{name}_text" in CONFIG_MAPPING else name
    default = json.loads(CONFIG_MAPPING[name]().to_json_string())
    fields = {key: value for key, value in SMALL.items() if default.get(key, None) is not None or key in MUST.get(name, ())}
    return CONFIG_MAPPING[name](**fields | OTHERS.get(model_type, {}) | given)


MUST = {"deepseek_v2": ("n_group", "topk_group", "num_experts_per_tok"), "dots1": ("n_routed_experts", "n_shared_experts",
        "num_experts_per_tok"), "deepseek_ocr2_text": ("n_group", "topk_group", "num_experts_per_tok")}


def module_of(model_type):
    name = MODULES.get(model_type, CONFIGS.get(model_type, model_type))
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def block_class(model_type):
    """The class of a type's block: the first of its module that has experts and is no layer."""
    import torch
    module = module_of(model_type)
    found = [x for name, x in vars(module).items() if inspect.isclass(x) and issubclass(x, torch.nn.Module)
             and x.__module__ == module.__name__ and name.endswith(CLASSES.get(model_type, ""))
             and ("self.experts = " in inspect.getsource(x) or model_type == "jetmoe" and name == "JetMoeMoE")
             and not name.endswith("Layer") or name == "AriaTextMoELayer"]
    return found[0]


@contextlib.contextmanager
def recorded(config, names):
    """Adds the fields of a configuration that are read to names."""
    kind = type(config)

    class Recording(kind):
        def __getattribute__(self, name):
            names.add(name)
            return super().__getattribute__(name)

    config.__class__ = Recording
    yield
    config.__class__ = kind


class Block:
    """A block, its state and that of its files, the configuration, and what it computes."""

    def __init__(self, model_type, seed=0, **given):
        import torch
        self.config = config_of(model_type, **given)
        self.config._experts_implementation = "eager"
        cls = block_class(model_type)
        takes_layer = "layer_idx" in inspect.signature(cls.__init__).parameters
        layer = {"deepseek_v4": 4, "nemotron_h": 1}.get(model_type, 1)
        self.read = set()  # fields that the block reads
        with recorded(self.config, self.read):
            self.module = cls(self.config, layer) if takes_layer else cls(self.config)
        self.modules = {PREFIX.get(model_type, "mlp"): self.module}
        if model_type in BESIDE:
            name = next(name for name in vars(module_of(model_type)) if name.startswith("Granite") and name.endswith("MLP"))
            self.modules["shared_mlp"] = getattr(module_of(model_type), name)(self.config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module in self.modules.values():
                for tensor in module.state_dict().values():
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.4)
                module.eval()
            if model_type == "longcat_flash":  # rows of zero experts, which no token reads
                self.module.experts.gate_up_proj[self.config.n_routed_experts:] = 0
        self.fields = json.loads(self.config.to_json_string(use_diff=False)) | {"model_type": model_type}

    def __call__(self, x):
        with recorded(self.config, self.read):
            out = self.module(x)
        out = out[0] if isinstance(out, tuple) else out
        out = out.reshape(x.shape)
        return out + self.modules["shared_mlp"](x) if "shared_mlp" in self.modules else out

    @property
    def prefix(self):
        """Prefix of the block's names in files."""
        names = [name for name in self.files() if "shared_mlp" not in name]
        found = {name.split(".experts.")[0] for name in names if ".experts." in name}
        return min(found, key=len) if found else next(name for name in names if name.endswith("router.layer.weight"))[:-20]

    def state(self, gradients=False):
        """Arrays as transformers has them in memory, by whole names; or the gradients of those that are trained."""
        import torch
        found = {}
        for prefix, module in self.modules.items():
            trained = dict(module.named_parameters())
            for name, tensor in module.state_dict(keep_vars=True).items():
                grad = trained[name].grad if name in trained else None
                grad = torch.zeros_like(tensor) if grad is None else grad
                found[f"model.layers.0.{prefix}.{name}"] = grad if gradients else tensor.detach()
        return found

    def files(self, gradients=False):
        """Arrays as transformers writes them to files."""
        from types import SimpleNamespace

        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
        from transformers.core_model_loading import revert_weight_conversion
        own = self.config.model_type
        own = own if get_checkpoint_conversion_mapping(own) else own.removesuffix("_text")
        conversions = [conversion for kind in CONVERSIONS.get(self.fields["model_type"], (own,))
                       for conversion in get_checkpoint_conversion_mapping(kind) or ()]
        if not conversions:
            return self.state(gradients)
        # Transformers transposes arrays of other shapes than these: those of memory.
        unlike = SimpleNamespace(shape=None)
        model = SimpleNamespace(_weight_conversions=conversions, config=self.config, get_parameter=lambda name: unlike)
        return {name: x.contiguous() for name, x in revert_weight_conversion(model, self.state(gradients)).items()}
