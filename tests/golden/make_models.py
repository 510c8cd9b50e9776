#!/usr/bin/env python3
"""Write small random Qwen3.5 models of odd sizes with vectors as golden.json has them, into tests/golden/models/odd_*.

Needs torch and transformers (made with transformers 5.17.0, torch 2.15.0); the tests need neither. Weights are rounded to bfloat16, the vectors are computed
from those in float32 with eager attention. Two models are stored in other forms that checkpoints come in: experts fused in one tensor, and a text
model nested in text_config under the prefix model.language_model.

usage: make_models.py [MODEL...]"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = [1, 3, 63, 64, 66, 150]
N_GREEDY = 16

# three value heads a key head, one KV head, tied head, a rotary part of half, an odd MLP width, full attention first
THREE = dict(vocab_size=101, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=24, intermediate_size=77, linear_num_key_heads=2,
             linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=20, linear_conv_kernel_dim=3, tie_word_embeddings=True, max_position_embeddings=512,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
             layer_types=["full_attention", "linear_attention", "full_attention"])
# head_dim 64 rotated as a whole, an attention bias, value heads as many as key heads
WHOLE = dict(vocab_size=130, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=64, intermediate_size=33, linear_num_key_heads=3,
             linear_num_value_heads=3, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4, tie_word_embeddings=False, max_position_embeddings=512, attention_bias=True,
             rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 1.0},
             layer_types=["linear_attention", "full_attention"])
# an odd number of experts of an odd width, fused and nested
FUSED = dict(vocab_size=97, hidden_size=56, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=16, linear_num_key_heads=1, linear_num_value_heads=3,
             linear_key_head_dim=24, linear_value_head_dim=16, linear_conv_kernel_dim=4, tie_word_embeddings=False, max_position_embeddings=512, moe_intermediate_size=19,
             shared_expert_intermediate_size=27, num_experts=11, num_experts_per_tok=3,
             rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.25})

MODELS = {"odd_three": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, THREE), "odd_whole": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, WHOLE),
          "odd_fused": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, FUSED)}


def randomize(model, seed):
    """Spread values wide enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.3 if p.ndim == 1 else 0.25
            value = torch.randn(p.shape, generator=generator) * scale
            if name.endswith("linear_attn.norm.weight"):
                value += 1.0
            p.copy_(value.to(torch.bfloat16).to(torch.float32))


def routed(model):
    """Hooks that collect the expert ids of each MoE layer of one forward pass."""
    choices, handles = {}, []
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts"):
            handles.append(layer.mlp.gate.register_forward_hook(lambda module, args, out, i=i: choices.__setitem__(i, out[2].tolist())))
    return choices, handles


def make_case(model, prompt):
    choices, handles = routed(model)
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    lp = torch.log_softmax(logits.double(), -1)
    case = {"prompt": prompt, "last_logits": [round(x, 6) for x in logits[-1].tolist()], "argmax_per_position": logits.argmax(-1).tolist(),
            "prompt_logprobs": [round(lp[i, prompt[i + 1]].item(), 6) for i in range(len(prompt) - 1)], "greedy": [], "greedy_margin": []}
    ids = list(prompt)
    for _ in range(N_GREEDY):
        with torch.no_grad():
            last = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        top = last.topk(2)
        case["greedy"].append(top.indices[0].item())
        case["greedy_margin"].append(round((top.values[0] - top.values[1]).item(), 6))
        ids.append(top.indices[0].item())
    if choices:
        case["routing"] = [{"layer": layer, "experts": experts} for layer, experts in sorted(choices.items())]
    return case


def nest(tensors):
    """The names of a text model inside a vision model, with tensors of the other parts that a reader ignores."""
    out = {("model.language_model." + name[len("model."):] if name.startswith("model.") else name): value for name, value in tensors.items()}
    out["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4)
    out["mtp.norm.weight"] = torch.zeros(4)
    return out


def make_model(name, seed):
    model_class, config_class, sizes = MODELS[name]
    folder = HERE / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    config = config_class(**sizes)
    config._attn_implementation = config._experts_implementation = "eager"     # grouped products ask for aligned widths
    model = model_class(config).eval().to(torch.float32)
    randomize(model, seed)
    random = torch.Generator().manual_seed(seed + 1)
    cases = [make_case(model, torch.randint(0, config.vocab_size, (n,), generator=random).tolist()) for n in LENGTHS]
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items() if not (config.tie_word_embeddings and key == "lm_head.weight")}
    written = json.loads(config.to_json_string(use_diff=False))
    if name == "odd_fused":
        tensors = nest(tensors)               # state_dict holds the experts fused
        written = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "tie_word_embeddings": False, "text_config": written}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    arch = "qwen3_5_moe" if "num_experts" in sizes else "qwen3_5"
    (folder / "golden.json").write_text(json.dumps({"arch": arch, "reference": "transformers 5.17.0, float32 eager, weights rounded to bfloat16", "cases": cases}) + "\n")
    print(name, sum(p.stat().st_size for p in folder.iterdir()), "bytes,", len(tensors), "tensors")


def main():
    for name in sys.argv[1:] or MODELS:
        make_model(name, 1000 + list(MODELS).index(name))


if __name__ == "__main__":
    main()
