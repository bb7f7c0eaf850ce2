"""Small random transformers models: logits in evaluation and training, all gradients, tokens generated with a cache.
As a program, with or without the drop-ins on the path, saves its results:
transformers_models.py OUT [--device DEVICE] [NAME ...]."""

import argparse
import os

import torch

_MAMBA1 = dict(hidden_size=32, state_size=8, num_hidden_layers=2, vocab_size=64, time_step_rank=4)
_MAMBA2 = dict(hidden_size=32, state_size=8, num_hidden_layers=2, vocab_size=64, head_dim=8, num_heads=8, n_groups=2, chunk_size=16)
_HYBRID = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
_BAMBA = dict(_HYBRID, mamba_d_state=8, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=2, mamba_chunk_size=16)
_TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
_DELTA = dict(_HYBRID, head_dim=8, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
              linear_value_head_dim=12)

# name: (configuration class, model class, its arguments)
MODELS = {
    "mamba": ("MambaConfig", "MambaForCausalLM", _MAMBA1),
    "falcon_mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", _MAMBA1),
    "jamba": ("JambaConfig", "JambaForCausalLM", dict(_HYBRID, mamba_d_state=8, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1, num_experts=2,
                                                      num_experts_per_tok=1, expert_layer_period=2, expert_layer_offset=1)),
    "zamba": ("ZambaConfig", "ZambaForCausalLM", dict(_HYBRID, num_hidden_layers=3, num_key_value_heads=4, mamba_d_state=8, mamba_dt_rank=4,
                                                      n_mamba_heads=2, layers_block_type=["mamba", "hybrid", "hybrid"], attention_head_dim=16)),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", _MAMBA2),
    "bamba": ("BambaConfig", "BambaForCausalLM", dict(_BAMBA, attn_layer_indices=[1])),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", dict(_BAMBA, mamba_d_ssm=64)),
    "granite": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", dict(_BAMBA, layer_types=["mamba", "attention"], shared_intermediate_size=32,
                                                                             num_local_experts=2, num_experts_per_tok=1)),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", dict(_HYBRID, layers_block_type=["mamba", "attention"], head_dim=8, ssm_state_size=8,
                                                                   mamba_num_heads=8, mamba_head_dim=8, n_groups=2, chunk_size=16)),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", dict(_DELTA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", dict(_DELTA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                                                          shared_expert_intermediate_size=32)),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", dict(_HYBRID, **_TOKENS, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                                                                      linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12)),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", dict(_HYBRID, **_TOKENS, num_key_value_heads=4, layer_types=["linear_attention", "full_attention"],
                                                                      mlp_layer_types=["dense", "dense"], linear_head_dim=8, linear_num_heads=4, kv_lora_rank=8,
                                                                      qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, num_local_experts=2)),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", dict(_HYBRID, layer_types=["conv", "full_attention"])),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM", dict(_HYBRID, layer_types=["conv", "full_attention"], num_experts=4, num_experts_per_tok=2, num_dense_layers=1,
                                                             moe_intermediate_size=32)),
    "zamba2": ("Zamba2Config", "Zamba2ForCausalLM", dict(_HYBRID, num_key_value_heads=4, mamba_d_state=8, mamba_ngroups=2, n_mamba_heads=8,
                                                         mamba_headdim=8, chunk_size=16, layers_block_type=["mamba", "hybrid"], num_mem_blocks=1,
                                                         attention_head_dim=16, use_long_context=False)),
}

# For flash_attn: their classes' name, and what their configuration needs besides.
_ATTENTION = dict(hidden_size=112, intermediate_size=64, num_hidden_layers=2, num_attention_heads=14, num_key_value_heads=2, vocab_size=200, max_position_embeddings=256)
ATTENTION = {
    "qwen2": ("Qwen2", {}), "llama": ("Llama", {}), "mistral": ("Mistral", dict(sliding_window=8)), "mixtral": ("Mixtral", dict(num_local_experts=2)),
    "qwen3": ("Qwen3", dict(head_dim=8)), "qwen3_moe": ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8)),
    "gemma": ("Gemma", dict(head_dim=8)), "gemma2": ("Gemma2", dict(head_dim=8, sliding_window=8)), "phi": ("Phi", {}), "phi3": ("Phi3", dict(pad_token_id=0)),
    "granite": ("Granite", {}), "olmo2": ("Olmo2", {}), "starcoder2": ("Starcoder2", {}), "stablelm": ("StableLm", {}), "gpt_neox": ("GPTNeoX", {}), "cohere": ("Cohere", {}),
    "glm": ("Glm", dict(head_dim=8, pad_token_id=0)), "helium": ("Helium", dict(head_dim=8)), "opt": ("OPT", dict(ffn_dim=64, word_embed_proj_dim=112)),
}


def build_attention(name, implementation):
    import transformers
    family, more = ATTENTION[name]
    torch.manual_seed(0)
    return getattr(transformers, family + "ForCausalLM")._from_config(getattr(transformers, family + "Config")(**{**_ATTENTION, **more}), attn_implementation=implementation).eval()


def build(name):
    import transformers
    config, model, arguments = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**arguments))
    with torch.no_grad():
        for parameter in made.parameters():  # perturbed, so that nothing is equal by chance
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def compute(name, device):
    model, generator = build(name).to(device), torch.Generator().manual_seed(1)
    ids = torch.randint(1, 60, (2, 37), generator=generator).to(device)
    results = {}
    model.eval()
    with torch.no_grad():
        results["logits"] = model(ids).logits
        results["tokens"] = model.generate(ids[:, :9], max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    model.train()
    out = model(ids, labels=ids, use_cache=False)
    results["training logits"] = out.logits.detach()
    out.loss.backward()
    results.update(("gradient of " + key, p.grad.clone()) for key, p in model.named_parameters() if p.grad is not None)
    return {key: value.cpu() for key, value in results.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    transformers.logging.set_verbosity_error()
    results = {}
    for name in options.names:
        try:
            results[name] = compute(name, options.device)
        except Exception as error:  # a release without the model, or one that fails: the test reports it
            results[name] = "%s: %s" % (type(error).__name__, error)
    torch.save({"version": transformers.__version__, "results": results}, options.out)


if __name__ == "__main__":
    main()
