#!/usr/bin/env python3
"""Language models' folders as GGUF files, as llama.cpp's converter writes them: the same tokens with the same
probabilities. Usage: gguf_models.py KRAIT"""
import json
import math
import pathlib
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "demo"))
import tiny_language_model as tiny
from run import check, check_error, finish, krait

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "hybrids"
here = pathlib.Path(tempfile.mkdtemp(prefix="krait-gguf-"))
ATTENTION = {f"self_attn.{k}_proj": f"attn_{v}" for k, v in {"q": "q", "k": "k", "v": "v", "o": "output"}.items()} | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
MAMBA = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "out_proj": "ssm_out", "norm": "ssm_norm", "dt_layernorm": "ssm_dt_norm", "b_layernorm": "ssm_b_norm", "c_layernorm": "ssm_c_norm"}
DELTA = {"in_proj_ba": "ssm_ba", "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}
SHARED = {"shared_expert." + k: v + "_shexp" for k, v in {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}.items()} | {"shared_expert_gate": "ffn_gate_inp_shexp"}
MLP = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "pre_ff_layernorm": "ffn_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "norm": "attn_norm"}
OUTER = {"embed_tokens": "token_embd", "embeddings": "token_embd", "norm": "output_norm", "norm_f": "output_norm", "final_layernorm": "output_norm", "embedding_norm": "token_embd_norm", "lm_head": "output"}


def read(path):
    """{name: (shape, floats)} of bfloat16 and float32 tensors."""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, item in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            blob = data[8 + n:][slice(*item["data_offsets"])]
            words = struct.unpack(f"<{len(blob) // 2}H", blob)
            out[name] = item["shape"], list(struct.unpack(f"<{len(words)}f", b"".join(b"\0\0" + struct.pack("<H", w) for w in words)) if item["dtype"] == "BF16" else struct.unpack(f"<{len(blob) // 4}f", blob))
    return out


def interleave(values, heads, width):
    """Rows of each head: halves' rows next to each other."""
    rows = [values[i:i + width] for i in range(0, len(values), width)]
    size = len(rows) // heads
    order = [h * size + half * (size // 2) + i for h in range(heads) for i in range(size // 2) for half in range(2)]
    return [v for r in order for v in rows[r]]


def stem_of(kind, own):
    """The name in a layer, without its end; None: written elsewhere."""
    part, _, rest = own.partition(".")
    if kind == "qwen3next" and (own == "post_attention_layernorm" or part == "linear_attn" or rest in SHARED):
        return "post_attention_norm" if own in NORMS else DELTA.get(rest) or SHARED[rest]
    if own in ATTENTION or own in NORMS:
        return ATTENTION.get(own) or NORMS[own]
    if part in ("mamba", "mixer") and rest in MAMBA:
        return MAMBA[rest]
    if part == "mixer":
        return {f"{k}_proj": v for k, v in {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "up": "ffn_up", "down": "ffn_down"}.items()}.get(rest) or {"gate": "ffn_gate_inp", "shared_experts.up_proj": "ffn_up_shexp", "shared_experts.down_proj": "ffn_down_shexp"}.get(rest)
    if part == "self_attn":
        return {"out_proj": "attn_output", "q_layernorm": "attn_q_norm", "k_layernorm": "attn_k_norm"}[rest]
    if part in ("mlp", "feed_forward"):
        return MLP.get(rest) or {"gate": "ffn_gate_inp", "router": "ffn_gate_inp", "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}.get(rest)
    return {"conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj"}.get(own)


def experts(kind, tensors, add):
    """Matrices of experts as one tensor; Granite's, and its shared MLP, in halves."""
    stacks = {}
    for name, (shape, values) in tensors.items():
        layer, _, own = name.partition(".layers.")[2].partition(".")
        if ".experts." in own:
            stem = own.split(".")[-2]
            stacks.setdefault((layer, {**MLP, "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}[stem]), []).append((int(own.split(".experts.")[1].split(".")[0]), shape, values))
        if own in ("block_sparse_moe.input_linear.weight", "shared_mlp.input_linear.weight"):
            end, (rows, width) = ("exps", shape[1:]) if len(shape) == 3 else ("shexp", shape)
            parts = [values[i:i + rows * width] for i in range(0, len(values), rows * width)]
            for half, part in enumerate(("gate", "up")):
                add(f"blk.{layer}.ffn_{part}_{end}.weight", shape[:-2] + [rows // 2, width], [v for p in parts for v in p[half * rows // 2 * width:(half + 1) * rows // 2 * width]])
        if own in ("block_sparse_moe.output_linear.weight", "shared_mlp.output_linear.weight", "block_sparse_moe.router.layer.weight"):
            add(f"blk.{layer}." + {"b": "ffn_down_exps", "s": "ffn_down_shexp"}[own[0]] * ("output" in own) + "ffn_gate_inp" * ("router" in own) + ".weight", shape, values)
    for (layer, stem), parts in stacks.items():
        parts.sort()
        add(f"blk.{layer}.{stem}_exps.weight", [len(parts)] + parts[0][1], [v for _, _, p in parts for v in p])


def fold(name, values, c, shape):
    """Falcon-H1's multipliers in its weights."""
    d, groups = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    key = next((k for k in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "out_proj", "in_proj", "embed_tokens", "lm_head") if k in name), None)
    attention = c["attention_in_multiplier"]
    by = {"q_proj": attention, "k_proj": attention * c["key_multiplier"], "v_proj": attention, "o_proj": c["attention_out_multiplier"], "gate_proj": c["mlp_multipliers"][0], "down_proj": c["mlp_multipliers"][1],
          "out_proj": c["ssm_out_multiplier"], "embed_tokens": c["embedding_multiplier"], "lm_head": c["lm_head_multiplier"], None: 1}
    if key != "in_proj":
        return [v * by[key] for v in values]
    rows = [m * c["ssm_in_multiplier"] for m, n in zip(c["ssm_multipliers"], (d, d, groups, groups, c["mamba_n_heads"])) for _ in range(n)]
    return [v * rows[i // shape[1]] for i, v in enumerate(values)]


def split_by_heads(values, c, width):
    """Each key head's q, k, and its value heads' v, z -> all heads' q, k and v; their z."""
    n, each = c["linear_num_key_heads"], len(values) // c["linear_num_key_heads"]
    k, v = c["linear_key_head_dim"] * width, c["linear_num_value_heads"] // n * c["linear_value_head_dim"] * width
    part = lambda start, size: [x for h in range(n) for x in values[h * each + start:h * each + start + size]]
    return part(0, k) + part(k, k) + part(2 * k, v), part(2 * k + v, v)


def tensors_of(kind, folder, c):
    out, source = [], read(folder / "model.safetensors")
    add = lambda name, shape, values: out.append((name, shape, "F32", struct.pack(f"<{len(values)}f", *values)))
    experts(kind, source, add)
    for name, (shape, values) in source.items():
        if kind == "falcon-h1":
            values = fold(name, values, c, shape)
        if kind == "qwen3next" and name.endswith("norm.weight") and "linear_attn" not in name:
            values = [v + 1 for v in values]
        if ".layers." not in name:
            add(OUTER[name.split(".")[-2]] + ".weight", shape, values)
            continue
        layer, _, own = name.partition(".layers.")[2].partition(".")
        stem, _, end = own.rpartition(".")
        special = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "expert_bias": "exp_probs_b.bias", "e_score_correction_bias": "exp_probs_b.bias"}.get(end)
        if end == "A_log":
            values = [-math.exp(v) for v in values]
        if stem == "linear_attn.in_proj_qkvz":
            for part, rows in zip(("attn_qkv", "attn_gate"), split_by_heads(values, c, shape[1])):
                add(f"blk.{layer}.{part}.weight", [len(rows) // shape[1], shape[1]], rows)
            continue
        if special:
            add(f"blk.{layer}.{special}", shape + [1] if len(shape) == 1 and end in ("A_log", "D") and kind not in ("jamba", "qwen3next") else shape, values)
            continue
        stem = stem_of(kind, stem)
        if ".experts." in own or "block_sparse" in own or "shared_mlp" in own:
            continue
        if kind == "llama" and stem in ("attn_q", "attn_k"):
            values = interleave(values, c["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"], shape[1])
        bare = (kind, stem) == ("falcon-h1", "ffn_norm") # the one weight whose name has no end
        add(f"blk.{layer}.{stem}" + f".{end}" * (not bare), [shape[0], shape[2]] if len(shape) == 3 else shape[1:] if stem == "ffn_gate_inp_shexp" else shape, values)
    return out


def rope_factors(c):
    """LLaMA 3's scaling of each frequency."""
    r, n = c["rope_parameters"], c["hidden_size"] // c["num_attention_heads"]
    old, low, high, factors = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"], []
    for i in range(n // 2):
        wave = 2 * math.pi * r["rope_theta"] ** (2 * i / n)
        smooth = (old / wave - low) / (high - low)
        factors.append(1.0 if wave < old / high else r["factor"] if wave > old / low else 1 / ((1 - smooth) / r["factor"] + smooth))
    return factors


def values_of(kind, c):
    keys = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
            "num_experts_per_tok": "expert_used_count", "mamba_d_state": "ssm.state_size", "ssm_state_size": "ssm.state_size", "mamba_n_groups": "ssm.group_count", "n_groups": "ssm.group_count",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon", "layer_norm_epsilon": "attention.layer_norm_rms_epsilon", "norm_eps": "attention.layer_norm_rms_epsilon", "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale", "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale", "routed_scaling_factor": "expert_weights_scale", "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count"}
    if kind == "falcon-h1":
        del keys["embedding_multiplier"]
    if kind == "nemotron_h_moe":
        keys["layer_norm_epsilon"] = "attention.layer_norm_epsilon"
    if kind == "qwen3next":
        keys |= {"linear_num_key_heads": "ssm.group_count", "linear_key_head_dim": "ssm.state_size"}
    values = {"general.architecture": kind} | {f"{kind}.{keys[k]}": v for k, v in c.items() if k in keys and v is not None}
    kinds = c.get("layer_types") or c.get("layers_block_type") or []
    if kind in ("granitehybrid", "lfm2moe"): # of each layer: none where there is no attention
        values[f"{kind}.attention.head_count_kv"] = [c["num_key_value_heads"] if "attention" in k else 0 for k in kinds]
    theta = (c.get("rope_parameters") or {}).get("rope_theta")
    if kind == "qwen3next":
        values["qwen3next.rope.dimension_count"] = int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"])
    return values | ({f"{kind}.rope.freq_base": theta} if theta else {}) | {f"{kind}.block_count": len(kinds) or c["num_hidden_layers"]}


def story(model):
    done = krait("generate", model, "--ids", "-p", "5 6 7 8 9 10 11 12", "-n", 12, "--logprobs", 3, "--json", "--ignore-eos", "--state-dtype", "float32")
    check(done.returncode == 0, f"{model}: {done.stderr}")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def in_eights(tensors):
    """Matrices of experts in blocks of 8 bits, where rows are whole blocks."""
    for name, shape, kind, blob in tensors:
        if "_exps" in name and shape[-1] % 32 == 0:
            values, kind, blocks = struct.unpack(f"<{len(blob) // 4}f", blob), "Q8_0", []
            for i in range(0, len(values), 32):
                scale = struct.unpack("<e", struct.pack("<e", max(map(abs, values[i:i + 32])) / 127))[0]
                blocks.append(struct.pack("<e32b", scale, *(max(-127, min(127, round(v / scale))) for v in values[i:i + 32])))
            blob = b"".join(blocks)
        yield name, shape, kind, blob


def same(kind, name, change={}, blocks=False):
    """change: of config.json, for what a GGUF file cannot say."""
    folder, file = here / f"{name}-{blocks}", here / f"{name}-{blocks}.gguf"
    folder.mkdir()
    c = json.loads((GOLDEN / name / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(c))
    (folder / "model.safetensors").write_bytes((GOLDEN / name / "model.safetensors").read_bytes())
    tensors = tensors_of(kind, folder, c)
    if kind == "llama":
        factors = rope_factors(c)
        tensors.append(("rope_freqs.weight", [len(factors)], "F32", struct.pack(f"<{len(factors)}f", *factors)))
    tiny.write_gguf(file, values_of(kind, c), list(in_eights(tensors)) if blocks else tensors)
    want, got = story(folder), story(file)
    numbers = lambda s: [t["logprob"] for t in s.get("logprobs", [])]
    check(len(numbers(want)) == 12, f"{name}: {want}")
    check(blocks or got.get("ids") == want.get("ids"), f"{name}: as GGUF {got.get('ids')}, as a folder {want.get('ids')}")
    numbers = (lambda s: [s["logprobs"][0]["logprob"]]) if blocks else numbers
    check(all(abs(a - b) < (0.05 if blocks else 1e-4) for a, b in zip(numbers(got), numbers(want))), f"{name}: probabilities {numbers(got)}, {numbers(want)}")


same("llama", "llama")
same("qwen3moe", "qwen3-mixture")
same("qwen3moe", "qwen3-mixture", blocks=True)
same("granitehybrid", "granite", {"position_embedding_type": "nope"})
same("falcon-h1", "falcon", {"mamba_norm_before_gate": False})
same("nemotron_h_moe", "nemotron")
same("jamba", "jamba")
same("lfm2moe", "lfm2-mixture")
same("qwen3next", "qwen3-next")
tiny.write_gguf(here / "other.gguf", {"general.architecture": "qwen35"}, [])
check_error(2, "its general.architecture is 'qwen35'; only mamba, mamba2, qwen2, ", "generate", here / "other.gguf", "--ids", "-p", "5")
finish()
