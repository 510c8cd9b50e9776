#!/usr/bin/env python3
"""Write small random models of odd sizes, of every family, with vectors as golden.json has them, into tests/golden/models/odd_*.

Needs torch and transformers (made with transformers 5.17.0, torch 2.15.0); the tests need neither. Weights are rounded to bfloat16 (in the f8 models, to
F8_E4M3 times a scale), the vectors are computed from those in float32 with eager attention. Some are stored in other forms that checkpoints come in: experts
fused in one tensor, a text model nested in text_config under model.language_model. or language_model.model., a config as transformers 4 wrote it.

usage: make_models.py [MODEL...]"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LagunaConfig, LagunaForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3_5ForCausalLM,
                          Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

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

# llama3 rotation with all three of its ranges, biases everywhere, heads that do not add up to hidden
LLAMA = dict(vocab_size=103, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, head_dim=20, intermediate_size=77, attention_bias=True, mlp_bias=True,
             tie_word_embeddings=False, max_position_embeddings=512, eos_token_id=[7, 9],
             rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})
# yarn whose ramp is not cut to whole pairs, sliding layers behind a full one
QWEN3 = dict(vocab_size=101, hidden_size=44, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=24, intermediate_size=51, attention_bias=True,
             tie_word_embeddings=True, max_position_embeddings=512, use_sliding_window=True, sliding_window=37, max_window_layers=1,
             rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False})
# weights of the chosen experts as they are, a dense layer among mixtures, every layer sliding, linear rotation
QWEN3_MOE = dict(vocab_size=99, hidden_size=40, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=12, intermediate_size=35, moe_intermediate_size=19,
                 num_experts=11, num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[2], tie_word_embeddings=False, max_position_embeddings=512,
                 use_sliding_window=True, sliding_window=29, rope_parameters={"rope_type": "linear", "rope_theta": 20000.0, "factor": 2.5})
# a gate an element, a capped router, a first layer of experts, three numbers of heads, yarn on part of the heads
LAGUNA = dict(vocab_size=98, hidden_size=52, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, head_dim=20, intermediate_size=45, moe_intermediate_size=17,
              shared_expert_intermediate_size=23, num_experts=13, num_experts_per_tok=4, tie_word_embeddings=True, max_position_embeddings=512, sliding_window=33, attention_bias=True,
              gating="per-element", num_attention_heads_per_layer=[3, 6, 9, 3], mlp_layer_types=["sparse", "dense", "sparse", "sparse"], moe_routed_scaling_factor=1.7,
              moe_router_logit_softcapping=1.5, layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
              rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 16.0, "beta_fast": 64.0, "beta_slow": 1.0, "partial_rotary_factor": 0.5,
                                                  "original_max_position_embeddings": 64, "attention_factor": 1.1},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.8}})
# capped logits, linear rotation of the full layers, a scale of queries that is not head_dim's, nested as transformers 4 nests it
GEMMA3 = dict(vocab_size=97, hidden_size=50, num_hidden_layers=5, num_attention_heads=5, num_key_value_heads=1, head_dim=18, intermediate_size=61, attention_bias=True,
              query_pre_attn_scalar=40, final_logit_softcapping=3.0, sliding_window=21, max_position_embeddings=512,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
              rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 300000.0, "factor": 8.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0}})
# wider than a block of 128 by 128 scales, and no multiple of it
F8 = dict(vocab_size=101, hidden_size=136, num_hidden_layers=3, num_attention_heads=10, num_key_value_heads=2, head_dim=16, intermediate_size=200, tie_word_embeddings=False,
          max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
F8_MOE = dict(vocab_size=100, hidden_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=35, moe_intermediate_size=20,
              num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True, max_position_embeddings=512,
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0})

MODELS = {"odd_three": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, THREE), "odd_whole": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, WHOLE),
          "odd_fused": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, FUSED), "odd_llama": (LlamaForCausalLM, LlamaConfig, LLAMA),
          "odd_qwen3": (Qwen3ForCausalLM, Qwen3Config, QWEN3), "odd_qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, QWEN3_MOE),
          "odd_laguna": (LagunaForCausalLM, LagunaConfig, LAGUNA), "odd_gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, GEMMA3),
          "odd_f8": (Qwen3ForCausalLM, Qwen3Config, F8), "odd_f8_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, F8_MOE)}


def is_plain_norm(model):
    """Norm weights are stored as they are, not as w - 1."""
    return isinstance(model, (LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, LagunaForCausalLM))


def randomize(model, seed):
    """Spread values wide enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.3 if p.ndim == 1 else 0.25
            value = torch.randn(p.shape, generator=generator) * scale
            if name.endswith("linear_attn.norm.weight") or (name.endswith("norm.weight") and is_plain_norm(model)):
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


def nest_old(tensors):
    """The same as transformers 4 names them, in gemma3's checkpoints."""
    out = {"language_model." + name: value for name, value in tensors.items()}
    out["vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(4, 4)
    out["multi_modal_projector.mm_input_projection_weight"] = torch.zeros(4, 4)
    return out


def config_of_transformers_4(written):
    """gemma3's config as transformers 4 wrote it: the text model inside, one theta for each kind of layer, and what stretches the full layers beside them."""
    text = dict(written)
    ropes = text.pop("rope_parameters")
    text["rope_theta"] = ropes["full_attention"]["rope_theta"]
    text["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    text["rope_scaling"] = {"rope_type": "linear", "factor": ropes["full_attention"]["factor"]}
    text["torch_dtype"] = text.pop("dtype", None) or "bfloat16"
    text["sliding_window_pattern"] = 2
    del text["layer_types"], text["tie_word_embeddings"], text["eos_token_id"]
    return {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 5], "text_config": text, "vision_config": {"model_type": "siglip_vision_model"}}


def quantize(model, seed):
    """Round every projection to F8_E4M3 times a scale, in place; gives the stored tensors. Layer 0 has blocks of 128 by 128 scales, layer 1 one a row, layer 2 one a
    tensor; fused experts have blocks of 16 by 8."""
    generator, stored = torch.Generator().manual_seed(seed), {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            fused = p.ndim == 3
            if not fused and not name.endswith("_proj.weight"):
                continue
            layer = int(name.split(".")[2])
            rows, cols = p.shape[-2:]
            block = (16, 8) if "num_experts" in model.config.to_dict() or fused else [(128, 128), (1, cols), (rows, cols)][layer]
            down, across = -(-rows // block[0]), -(-cols // block[1])
            scale = (torch.rand(*p.shape[:-2], down, across, generator=generator) * 0.5 + 0.75) / 64
            wide = scale.repeat_interleave(block[0], -2)[..., :rows, :].repeat_interleave(block[1], -1)[..., :cols]
            f8 = (p / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
            p.copy_(f8.to(torch.float32) * wide)
            stored[name] = f8.contiguous()
            end = "_scale" if block == (1, cols) or block == (rows, cols) else "_scale_inv"
            stored[name + end] = scale.reshape(()) if block == (rows, cols) else scale.contiguous()
    return stored


def make_model(name, seed):
    model_class, config_class, sizes = MODELS[name]
    folder = HERE / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    config = config_class(**sizes)
    config._attn_implementation = config._experts_implementation = "eager"     # grouped products ask for aligned widths
    model = model_class(config).eval().to(torch.float32)
    randomize(model, seed)
    stored = quantize(model, seed + 2) if name.startswith("odd_f8") else {}
    random = torch.Generator().manual_seed(seed + 1)
    cases = [make_case(model, torch.randint(0, config.vocab_size, (n,), generator=random).tolist()) for n in LENGTHS]
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items() if not (config.tie_word_embeddings and key == "lm_head.weight")}
    tensors.update(stored)
    written = json.loads(config.to_json_string(use_diff=False))
    arch = config.model_type.removesuffix("_text")
    if name == "odd_fused":
        tensors = nest(tensors)               # state_dict holds the experts fused
        written = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "tie_word_embeddings": False, "text_config": written}
    if name == "odd_gemma3":
        tensors, written = nest_old(tensors), config_of_transformers_4(written)
    if stored:
        written["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 8] if "moe" in name else [128, 128]}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    rounded = "F8_E4M3 times scales" if stored else "bfloat16"
    (folder / "golden.json").write_text(json.dumps({"arch": arch, "reference": f"transformers 5.17.0, float32 eager, weights rounded to {rounded}", "cases": cases}) + "\n")
    print(name, sum(p.stat().st_size for p in folder.iterdir()), "bytes,", len(tensors), "tensors")


def main():
    for name in sys.argv[1:] or MODELS:
        make_model(name, 1000 + list(MODELS).index(name))


if __name__ == "__main__":
    main()
