#!/usr/bin/env python3
"""Write GGUF files into tests/golden/gguf with the reference writer: small reference models of tests/golden/models as F32, or BF16 where they
are new (both exact, so golden.json holds for them too), and for llama, qwen3, qwen3_5_moe and gemma3 a random model whose matrices are of every quantized type in turn (NAME_mixed.gguf), with mixed.json: logits of the dequantized model
from transformers.

Needs gguf, torch, transformers and llama-cpp-python, whose library quantizes (made with gguf 0.19.0, torch 2.15.0, transformers 5.17.0, llama-cpp-python 0.3.36); the tests need none.
What llama.cpp's converter does to values is done here: names and keys are the package's, llama's query and key rows are turned, norms of gemma3 and qwen3_5 get 1 added, A_log becomes
-exp(A_log), DeltaNet's value heads are put in tiled order, llama 3's rotation becomes rope_freqs.

The architecture laguna is newer than that package: small_laguna.gguf was made with gguf-py of llama.cpp's repository (PYTHONPATH=llama.cpp/gguf-py).

usage: make_gguf_models.py [NAME...]"""
import ctypes
import json
import math
import pathlib
import sys

import gguf
import llama_cpp
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3Config, Qwen3ForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "gguf"
ARCH = {"llama": "llama", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "laguna": "laguna", "qwen3_5_moe_text": "qwen35moe", "gemma3_text": "gemma3"}
PLAIN = ["small_llama", "odd_llama", "small_qwen3", "small_qwen3_5_moe", "small_gemma3"]
IN_BF16 = ["small_qwen3_moe", "small_laguna"]
TYPES = [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4, Q.NVFP4, Q.F16, Q.BF16]
POSITIONS = [0, 40, 63, 64, 71]
PROMPT = [7, 3, 50, 11, 61, 2, 33, 9] * 9                # 72 tokens: a chunk and a part of one

COMMON = dict(vocab_size=64, hidden_size=256, num_key_value_heads=1, max_position_embeddings=512, initializer_range=0.1)
MIXED = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(COMMON, num_hidden_layers=2, num_attention_heads=4, head_dim=64, intermediate_size=256, tie_word_embeddings=False)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(COMMON, num_hidden_layers=2, num_attention_heads=4, head_dim=64, intermediate_size=256, tie_word_embeddings=False)),
    "qwen3_5_moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, dict(COMMON, num_hidden_layers=4, num_attention_heads=2, head_dim=64, moe_intermediate_size=64, shared_expert_intermediate_size=64,
                    num_experts=4, num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=64, linear_conv_kernel_dim=4,
                    tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, dict(COMMON, num_hidden_layers=2, num_attention_heads=4, head_dim=64, intermediate_size=256, query_pre_attn_scalar=64, sliding_window=16,
               layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=True)),
}


def quantize(values, kind):
    """Stored bytes by the reference's library."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind in (Q.F32, Q.F16, Q.BF16):
        return gguf.quants.quantize(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n_cols, n_rows = values.shape[-1], values.size // values.shape[-1]
    out = np.zeros((n_rows, n_cols // block * size), dtype=np.uint8)
    library = ctypes.CDLL(str(next((pathlib.Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so*"))))
    run = library.ggml_quantize_chunk
    run.restype = ctypes.c_size_t
    run.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    weights = np.ones(n_cols, dtype=np.float32)
    written = run(int(kind), values.ctypes.data, out.ctypes.data, 0, n_rows, n_cols, weights.ctypes.data)
    assert written == out.nbytes, (kind, written, out.nbytes)
    return out.reshape(*values.shape[:-1], -1)


def tiled(x, dim, n_k, n_v, width):
    """Value heads by key head -> key heads by value head."""
    shape = list(x.shape)
    x = x.reshape(shape[:dim] + [n_k, n_v // n_k, width] + shape[dim + 1:]).transpose(dim, dim + 1)
    return x.reshape(shape)


def convert(name, x, c):
    """(name without suffix that the package's map knows, suffix, value) as the converter makes it; None for what it leaves out."""
    kind = c["model_type"]
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = c["num_attention_heads"] if "q_proj" in name else c["num_key_value_heads"]
        x = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
    if kind in ("gemma3_text", "qwen3_5_moe_text") and name.endswith("norm.weight") and "linear_attn.norm" not in name:
        x = x + 1
    if "linear_attn" in name:
        n_k, n_v, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        keys = 2 * n_k * dk
        if "conv1d" in name:
            x = x.squeeze(1)
        if "A_log" in name:
            x = -torch.exp(x)
        if "in_proj_qkv" in name or "conv1d" in name:
            x = torch.cat([x[:keys], tiled(x[keys:], 0, n_k, n_v, dv)])
        elif "in_proj_z" in name:
            x = tiled(x, 0, n_k, n_v, dv)
        elif "in_proj_a" in name or "in_proj_b" in name or "A_log" in name or "dt_bias" in name:
            x = tiled(x, 0, n_k, n_v, 1)
        elif "out_proj" in name:
            x = tiled(x, 1, n_k, n_v, dv)
    name = name.replace("dt_bias", "dt_proj.bias").replace("e_score_correction_bias", "e_score_correction.bias")
    suffix = "." + name.rsplit(".", 1)[1] if name.endswith((".weight", ".bias")) else ""
    return name.removesuffix(suffix), suffix, x


def converted(state, c):
    for name, x in state.items():
        if name.endswith("experts.gate_up_proj"):
            half = x.shape[1] // 2
            yield name.replace("gate_up_proj", "gate_proj"), ".weight", x[:, :half]
            yield name.replace("gate_up_proj", "up_proj"), ".weight", x[:, half:]
        elif name.endswith(("experts.down_proj", "experts.gate_proj", "experts.up_proj")):
            yield name, ".weight", x
        elif not (name == "lm_head.weight" and c["tie_word_embeddings"]):
            yield convert(name, x, c)


def metadata(w, c):
    rope = c["rope_parameters"]
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_head_count(c.get("num_attention_heads_per_layer") or c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if c.get("intermediate_size"):
        w.add_feed_forward_length(c["intermediate_size"])
    if c["model_type"] == "gemma3_text":
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    elif c["model_type"] == "laguna":
        sliding = rope["sliding_attention"]
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        w.add_rope_dimension_count(int(c["head_dim"] * rope["full_attention"]["partial_rotary_factor"]))
        w.add_rope_dimension_count_swa(int(c["head_dim"] * sliding["partial_rotary_factor"]))
        w.add_rope_freq_base_swa(sliding["rope_theta"])
        w.add_expert_weights_norm(True)
        w.add_expert_weights_scale(c["moe_routed_scaling_factor"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_leading_dense_block_count(c["mlp_layer_types"].index("sparse"))
    else:
        w.add_rope_dimension_count(int(c["head_dim"] * rope.get("partial_rotary_factor", 1.0)))
    if c["model_type"] == "qwen3_5_moe_text":
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
        w.add_full_attention_interval(c["layer_types"].index("full_attention") + 1)
        w.add_rope_dimension_sections([11, 11, 10, 0])
    if "moe_intermediate_size" in c:
        w.add_expert_count(c.get("num_experts") or c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def rope_factors(c):
    """The converter's divisors for llama 3's rotation."""
    r, n = c["rope_parameters"], c["head_dim"]
    freqs = 1.0 / (r["rope_theta"] ** (torch.arange(0, n, 2, dtype=torch.float32) / n))
    factors = []
    for f in freqs:
        length = 2 * math.pi / f
        low, high = r["original_max_position_embeddings"] / r["low_freq_factor"], r["original_max_position_embeddings"] / r["high_freq_factor"]
        smooth = (r["original_max_position_embeddings"] / length - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        factors.append(1 if length < high else r["factor"] if length > low else 1 / ((1 - smooth) / r["factor"] + smooth))
    return torch.tensor(factors, dtype=torch.float32)


def write(path, c, tensors, file_type, vocabulary=None):
    w = gguf.GGUFWriter(str(path), ARCH[c["model_type"]])
    w.add_name(path.stem)
    w.add_file_type(file_type)
    metadata(w, c)
    if vocabulary:
        vocabulary(w)
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[ARCH[c["model_type"]]], c["num_hidden_layers"])
    if c["rope_parameters"].get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(c).numpy())
    for name, suffix, x, kind in tensors:
        there = names.get_name(name)
        assert there, name
        data = x.float().numpy()
        w.add_tensor(there + suffix, np.ascontiguousarray(data) if kind == Q.F32 else quantize(data, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(path.name, path.stat().st_size)


def stack_experts(state):
    """One tensor for the experts of a layer, as the converter makes it."""
    out = {}
    for name, x in state.items():
        head, _, tail = name.partition(".experts.")
        number, _, part = tail.partition(".")
        if number.isdigit():
            out.setdefault(f"{head}.experts.{part.removesuffix('.weight')}", {})[int(number)] = x
        else:
            out[name] = x
    return {n: torch.stack([x[i] for i in range(len(x))]) if isinstance(x, dict) else x for n, x in out.items()}


def plain(name):
    c = json.loads((HERE / "models" / name / "config.json").read_text())
    state = {k: v.float() for k, v in load_file(HERE / "models" / name / "model.safetensors").items()}
    state = stack_experts(state)
    kind = Q.BF16 if name in IN_BF16 else Q.F32
    write(OUT / f"{name}.gguf", c, [(n, s, x, kind if x.dim() > 1 else Q.F32) for n, s, x in converted(state, c)],
          gguf.LlamaFileType.MOSTLY_BF16 if kind == Q.BF16 else gguf.LlamaFileType.ALL_F32)


def mixed(name):
    """Types in turn; what a matrix's rows are no whole blocks of goes to the next type that fits. The reference has the dequantized values, undone to its own order."""
    torch.manual_seed(20)
    model_class, config_class, sizes = MIXED[name]
    config = config_class(**sizes)
    model = model_class(config).eval().float()
    for key, p in model.named_parameters():
        if p.dim() == 1:
            p.data.normal_(0.0 if name in ("gemma3", "qwen3_5_moe") and "linear_attn" not in key else 0.9, 0.1)
    c = json.loads(config.to_json_string(use_diff=False))
    c.setdefault("tie_word_embeddings", False)
    state, tensors, turn, reference = model.state_dict(), [], 0, {}
    for key, original in state.items():
        if key == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        made = list(converted({key: original}, c))
        kind = Q.F32
        if original.dim() >= 2 and "conv1d" not in key and "shared_expert_gate" not in key and "mlp.gate.weight" not in key:
            while made[0][2].shape[-1] % gguf.GGML_QUANT_SIZES[TYPES[turn % len(TYPES)]][0]:
                turn += 1
            kind = TYPES[turn % len(TYPES)]
            turn += 1
        for n, s, x in made:
            tensors.append((n, s, x.reshape(-1) if "shared_expert_gate" in n else x, kind))
        if kind != Q.F32:
            # a converter moves values only here, so where each came from is found by converting their numbers
            place = list(converted({key: torch.arange(original.numel(), dtype=torch.float64).reshape(original.shape)}, c))
            values = torch.zeros(original.numel())
            for (n, s, x), (_, _, at) in zip(made, place):
                values[at.reshape(-1).long()] = torch.from_numpy(gguf.dequantize(quantize(x.float().numpy(), kind), kind).astype(np.float32)).reshape(-1)
            reference[key] = values.reshape(original.shape)
    write(OUT / f"{name}_mixed.gguf", c, tensors, gguf.LlamaFileType.GUESSED)
    model.load_state_dict({**state, **reference}, strict=False)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    return {"types": sorted({t[3].name for t in tensors}), "prompt": PROMPT, "positions": POSITIONS, "exact": [[round(float(v), 5) for v in logits[p]] for p in POSITIONS]}


def bytes_vocabulary(w):
    """A byte-level vocabulary of 64 tokens with merges, ends and two templates."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"] + [chr(c) for c in range(0x61, 0x7B)] + ["\u0120", "\u010a"] + list("ABCDEFGHIJKLMNOPQRST")
    merges = ["t h", "th e", "\u0120 the", "i n", "a n", "an d", "\u0120 and", "o n", "e r", "r e", "\u0120 a", "\u0120 t"]
    tokens += [m.replace(" ", "") for m in merges]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([3, 3, 3, 4] + [1] * (len(tokens) - 4))
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_chat_template([{"name": "default", "template": "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}])


def pieces_vocabulary(w):
    """A SentencePiece vocabulary: control tokens, all bytes, characters and pieces with scores."""
    words = ["\u2581", "t", "h", "e", "a", "n", "d", "\u2581t", "he", "\u2581the", "an", "and", "\u2581a", "nd", "\u2581and"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\n\n"] + words
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([-1000.0] * 261 + [-float(i) for i in range(len(words))])
    w.add_token_types([3, 3, 3, 2] + [6] * 256 + [4] + [1] * len(words))
    w.add_bos_token_id(2)
    w.add_eos_token_id(1)
    w.add_unk_token_id(3)
    w.add_add_space_prefix(False)
    w.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")


TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=128, initializer_range=0.1)
TINIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(TINY, vocab_size=64, intermediate_size=32, tie_word_embeddings=True), bytes_vocabulary),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, dict(TINY, vocab_size=276, intermediate_size=32, sliding_window=16, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"],
               tie_word_embeddings=True), pieces_vocabulary),
    "qwen3_5_moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, dict(TINY, vocab_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=2, num_experts_per_tok=1,
                    linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4, tie_word_embeddings=False,
                    layer_types=["linear_attention", "full_attention"], rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}), bytes_vocabulary),
}


def tiny(name):
    """A seed of fuzz_gguf: whole, with a vocabulary, below 64 KB."""
    torch.manual_seed(3)
    model_class, config_class, sizes, vocabulary = TINIES[name]
    config = config_class(**sizes)
    c = json.loads(config.to_json_string(use_diff=False))
    kinds = [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.IQ4_NL, Q.MXFP4, Q.F16, Q.BF16]
    tensors = []
    for i, (n, s, x) in enumerate(converted(model_class(config).state_dict(), c)):
        plain_kind = x.dim() < 2 or "conv1d" in n or "shared_expert_gate" in n or "mlp.gate" in n or x.shape[-1] % 32
        tensors.append((n, s, x.reshape(-1) if "shared_expert_gate" in n else x, Q.F32 if plain_kind else kinds[i % len(kinds)]))
    write(HERE.parent / "fuzz/corpus/gguf" / f"{name}.gguf", c, tensors, gguf.LlamaFileType.MOSTLY_Q8_0, vocabulary)


def main():
    OUT.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    for name in PLAIN + IN_BF16:
        if not wanted or name in wanted:
            plain(name)
    for name in TINIES:
        if not wanted or "tiny" in wanted:
            tiny(name)
    if not wanted or "mixed" in wanted:
        (OUT / "mixed.json").write_text(json.dumps({name: mixed(name) for name in MIXED}, separators=(",", ":")) + "\n")


main()
