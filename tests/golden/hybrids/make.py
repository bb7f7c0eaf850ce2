#!/usr/bin/env python3
"""make.py [NAME...]: tiny random models of the families of hybrids.c, as transformers (5.24) saves them, in bfloat16, with
their results beside them, computed by whole passes in float64 (what transformers does in float32 stays so):
python3 tests/golden/hybrids/make.py, from the root of the tree. No part of the build or the tests."""
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
BASE = dict(vocab_size=72, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_expand=2, mamba_d_conv=4, mamba_chunk_size=8)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4, layer_types=["linear_attention", "full_attention"])
MODELS = {
    "llama": ("Llama", dict(num_hidden_layers=2, intermediate_size=48, tie_word_embeddings=True, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32})),
    "mistral": ("Mistral", dict(num_hidden_layers=2, intermediate_size=48, sliding_window=5, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16})),
    "qwen3-mixture": ("Qwen3Moe", dict(num_hidden_layers=2, head_dim=16, intermediate_size=48, moe_intermediate_size=24, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0])),
    "granite": ("GraniteMoeHybrid", dict(MAMBA, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], intermediate_size=16, shared_intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                                         embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=1.7, position_embedding_type="rope", tie_word_embeddings=True)),
    "falcon": ("FalconH1", dict(MAMBA, num_hidden_layers=2, head_dim=16, intermediate_size=40, mamba_d_ssm=64, mamba_rms_norm=True, key_multiplier=0.4, attention_in_multiplier=0.9, attention_out_multiplier=0.7, ssm_in_multiplier=1.2,
                                ssm_out_multiplier=0.6, ssm_multipliers=[0.7, 0.5, 0.6, 1.4, 0.4], mlp_multipliers=[0.9, 0.5], embedding_multiplier=2.5, lm_head_multiplier=0.3)),
    "nemotron": ("NemotronH", dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], head_dim=16, intermediate_size=40, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=2, conv_kernel=4, chunk_size=8,
                                   n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, n_group=2, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True, time_step_min=1e-12)),
    "jamba": ("Jamba", dict(num_hidden_layers=3, intermediate_size=40, num_experts=3, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=3, attn_layer_offset=2, mamba_d_state=8, mamba_dt_rank=4,
                            use_mamba_kernels=False)),
    "lfm2-mixture": ("Lfm2Moe", dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], intermediate_size=40, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, num_dense_layers=1, conv_L_cache=3,
                                     use_expert_bias=True, norm_topk_prob=True)),
    "lfm3": ("Lfm3", dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "sliding_attention"], head_dim=16, intermediate_size=40, conv_L_cache=5, sliding_window=6, use_attention_gate=True, use_sandwich_norm=True)),
    "zamba2": ("Zamba2", dict(num_hidden_layers=4, layers_block_type=["linear_attention", "hybrid", "hybrid", "hybrid"], num_key_value_heads=4, intermediate_size=40, mamba_d_state=8, mamba_ngroups=2, n_mamba_heads=4, mamba_expand=2,
                              mamba_d_conv=4, chunk_size=8, num_mem_blocks=2, adapter_rank=8, use_shared_attention_adapter=True, use_mem_rope=True, time_step_min=1e-12, use_mamba_kernels=False)),
    "qwen3-next": ("Qwen3Next", dict(DELTA, num_hidden_layers=2, head_dim=16, intermediate_size=40, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True)),
    "qwen35": ("Qwen3_5Text", dict(DELTA, num_hidden_layers=2, head_dim=16, intermediate_size=40, linear_value_head_dim=12, tie_word_embeddings=True)),
    # as saved, with a convolution in three equal parts and another name of a norm: not as published
    "olmo-hybrid-saved": ("OlmoHybrid", dict(DELTA, num_hidden_layers=2, intermediate_size=40, linear_num_value_heads=2, linear_value_head_dim=12)),
}


def randomise(model):
    """Every parameter; matrices so that rows stay of about one size."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, dtype=torch.float64)
        if "A_log" in name:
            p.data = noise.abs() * 0.5
        elif p.dim() == 1:
            p.data = ("norm" in name) * 1.0 + 0.2 * noise
        else:
            p.data = noise * (0.5 if "conv" in name and p.dim() == 3 else p.shape[-1] ** -0.5)
        if name.endswith(".linear.weight"):  # of Zamba2's shared layers, which would make of roundings what they like
            p.data *= 0.2
    for name, b in model.named_buffers():
        if "bias" in name:
            b.data = 0.2 * torch.randn(b.shape, dtype=torch.float64)


def results(model):
    logits = lambda ids: model(ids[None]).logits[0]

    def greedy(ids):
        ids, n = ids.clone(), len(ids)
        for _ in range(12):
            ids = torch.cat([ids, logits(ids)[-1].argmax()[None]])
        return ids[n:]

    out = {}
    draw = lambda n: torch.randint(4, BASE["vocab_size"], (n,))
    for key, ids in (("golden.", draw(26)), ("golden.short.", draw(7))):
        found = logits(ids)[None].float()
        out |= {key + "input_ids": ids[None], key + "logits": found, key + "step_logits": found.clone(), key + "greedy": greedy(ids)}
    rows = [draw(n) for n in (3, 9, 6)]
    pad = lambda t: torch.cat([torch.zeros(9 - len(t), *t.shape[1:], dtype=t.dtype), t])
    out["golden.batch.input_ids"] = torch.stack([pad(r) for r in rows])
    out["golden.batch.attention_mask"] = torch.stack([pad(torch.ones_like(r)) for r in rows])
    out["golden.batch.logits"] = torch.stack([pad(logits(r)) for r in rows]).float()
    out["golden.batch.greedy"] = torch.stack([greedy(r) for r in rows])
    return {k: v.contiguous() for k, v in out.items()}


def make(name):
    family, settings = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, family + "Config")(**(BASE | settings))
    config._experts_implementation = "eager"
    model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config).double().eval()
    randomise(model)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = type(model).from_pretrained(folder, dtype=torch.float32, experts_implementation="eager").double().eval()  # rotary tables are not rounded
    with torch.no_grad():
        save_file(results(model), HERE / (name + ".golden.safetensors"))


for name in sys.argv[1:] or MODELS:
    make(name)
    print(name, sum(f.stat().st_size for f in (HERE / name).iterdir()) >> 10, "KiB")
