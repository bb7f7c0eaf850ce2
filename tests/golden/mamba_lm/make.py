"""Makes tests/golden/mamba_lm: tiny language models with random weights, and what they compute, from the equations of
src/models/mamba_lm/MODEL.md in float64: logits of a prompt, states after it, gradients of its mean cross entropy, the greedy continuation and its logits.
Mamba, Mamba-2 and FalconMamba are compared with transformers' float64 models on the way. Each model is stored in the
forms in which it is published: mamba_ssm's folder (pytorch_model.bin and safetensors) and transformers'. Needs torch,
transformers, safetensors. Usage: python3 make.py"""
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
D, N, V, PADDED, L = 16, 8, 93, 96, 20
MAMBA2 = {"layer": "Mamba2", "d_state": N, "headdim": 16, "ngroups": 2, "chunk_size": 16}
ATTENTION = {"causal": True, "d_conv": 4, "head_dim": 8, "num_heads": 2, "out_proj_bias": False, "qkv_proj_bias": False, "rotary_emb_dim": 4}
COMMON = {"d_model": D, "vocab_size": V, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8}
MODELS = {
    "mamba1": {**COMMON, "n_layer": 2, "ssm_cfg": {"d_state": N}},
    "mamba2": {**COMMON, "n_layer": 2, "ssm_cfg": MAMBA2, "tie_embeddings": True},
    "hybrid": {**COMMON, "n_layer": 3, "ssm_cfg": {**MAMBA2, "ngroups": 1}, "attn_layer_idx": [1], "attn_cfg": ATTENTION, "tie_embeddings": True},
    "falcon": {"vocab_size": PADDED, "hidden_size": D, "state_size": N, "num_hidden_layers": 2},
}


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def conv(x, weight, bias):
    """Causal and depthwise, over (L, channels)."""
    taps = weight.shape[-1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    return sum(padded[k:k + len(x)] * weight[:, 0, k] for k in range(taps)) + bias


def mamba1(h, w, is_falcon, states):
    x, z = (h @ w["in_proj.weight"].T).chunk(2, -1)
    states["conv_state"] = F.pad(x, (0, 0, 4, 0))[-4:].T
    u = F.silu(conv(x, w["conv1d.weight"], w["conv1d.bias"]))
    rank = w["dt_proj.weight"].shape[1]
    dt, B, C = (u @ w["x_proj.weight"].T).split([rank, N_of(w), N_of(w)], -1)
    if is_falcon:
        dt, B, C = (rms(v, 1e-6) for v in (dt, B, C))
    dt = F.softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
    A, state, out = -w["A_log"].exp(), torch.zeros_like(w["A_log"]), []
    for t in range(len(h)):
        state = torch.exp(dt[t, :, None] * A) * state + (dt[t] * u[t])[:, None] * B[t]
        out.append(state @ C[t] + w["D"] * u[t])
    states["ssm_state"] = state
    return (torch.stack(out) * F.silu(z)) @ w["out_proj.weight"].T


def N_of(w):
    return w["A_log"].shape[-1]


def mamba2(h, w, cfg, states):
    heads, inner = len(w["dt_bias"]), w["norm.weight"].shape[0]
    groups, P = cfg.get("ngroups", 1), inner // heads
    n = (w["conv1d.weight"].shape[0] - inner) // (2 * groups)
    z, xbc, dt = (h @ w["in_proj.weight"].T).split([inner, inner + 2 * groups * n, heads], -1)
    states["conv_state"] = F.pad(xbc, (0, 0, 4, 0))[-4:].T
    x, B, C = F.silu(conv(xbc, w["conv1d.weight"], w["conv1d.bias"])).split([inner, groups * n, groups * n], -1)
    x = x.unflatten(-1, (heads, P))
    B, C = (v.unflatten(-1, (groups, n)).repeat_interleave(heads // groups, 1) for v in (B, C))
    dt = F.softplus(dt + w["dt_bias"])
    decay, state, out = torch.exp(-dt * w["A_log"].exp()), h.new_zeros(heads, P, n), []
    for t in range(len(h)):
        state = decay[t, :, None, None] * state + (dt[t, :, None] * x[t])[..., None] * B[t, :, None]
        out.append((state @ C[t, :, :, None])[..., 0] + w["D"][:, None] * x[t])
    states["ssm_state"] = state
    y = torch.stack(out).flatten(1) * F.silu(z)
    return (rms(y.unflatten(-1, (groups, -1)), 1e-5).flatten(1) * w["norm.weight"]) @ w["out_proj.weight"].T


def attention(h, w, cfg):
    heads, width, turned = cfg["num_heads"], cfg["head_dim"], cfg["rotary_emb_dim"]
    q, k, v = conv(h @ w["in_proj.weight"].T, w["conv1d.weight"], w["conv1d.bias"]).unflatten(-1, (3, heads, width)).unbind(1)
    angle = torch.arange(len(h))[:, None, None] * 10000.0 ** -(torch.arange(0, turned, 2).double() / turned)

    def rotary(x):
        a, b, rest = x.split([turned // 2, turned // 2, width - turned], -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest), -1)

    scores = torch.einsum("ihd,jhd->hij", rotary(q), rotary(k)) / width ** 0.5
    scores = scores.masked_fill(torch.ones(len(h), len(h)).triu(1).bool(), float("-inf"))
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1) @ w["out_proj.weight"].T


def run(weights, cfg, ids, states):
    """Logits of every token; states gets the recurrent layers' states after the last."""
    table = weights["backbone.embedding.weight"]
    stream = table[ids]
    for i in range(cfg.get("n_layer") or cfg["num_hidden_layers"]):
        at = "backbone.layers.%d." % i
        w = {k[len(at + "mixer."):]: v for k, v in weights.items() if k.startswith(at + "mixer.")}
        h, kept = rms(stream, 1e-5) * weights[at + "norm.weight"], {}
        if i in cfg.get("attn_layer_idx", ()):
            stream = stream + attention(h, w, cfg["attn_cfg"])
        elif "dt_bias" in w:
            stream = stream + mamba2(h, w, cfg["ssm_cfg"], kept)
        else:
            stream = stream + mamba1(h, w, "hidden_size" in cfg, kept)
        states.update({"golden.%s.%d" % (k, i): v for k, v in kept.items()})
    return rms(stream, 1e-5) * weights["backbone.norm_f.weight"] @ table.T


def draw(cfg):
    """Random weights under mamba_ssm's names."""
    def normal(deviation, *shape):
        return torch.randn(shape) * deviation

    w, layers = {"backbone.embedding.weight": normal(0.5, PADDED, D)}, cfg.get("n_layer") or cfg["num_hidden_layers"]
    for i in range(layers):
        at, inner, ssm = "backbone.layers.%d." % i, 2 * D, cfg.get("ssm_cfg", {})
        width, channels, m = inner, inner, {}
        if i in cfg.get("attn_layer_idx", ()):
            width, channels = D, 3 * D
            m["in_proj.weight"] = normal(0.4, channels, D)
        elif "layer" in ssm:
            heads, channels = inner // ssm["headdim"], inner + 2 * ssm["ngroups"] * N
            m = {"dt_bias": normal(1, heads), "A_log": normal(0.5, heads), "D": normal(1, heads), "in_proj.weight": normal(0.3, inner + channels + heads, D),
                 "norm.weight": 1 + normal(0.2, inner)}
        else:
            m = {"A_log": normal(0.5, inner, N), "D": normal(1, inner), "in_proj.weight": normal(0.3, 2 * inner, D), "x_proj.weight": normal(0.3, 1 + 2 * N, inner),
                 "dt_proj.weight": normal(0.5, inner, 1), "dt_proj.bias": normal(1, inner)}
        m.update({"conv1d.weight": normal(0.5, channels, 1, 4), "conv1d.bias": normal(0.2, channels), "out_proj.weight": normal(0.3, D, width)})
        w.update({at + "mixer." + k: v for k, v in m.items()})
        w[at + "norm.weight"] = 1 + normal(0.2, D)
    w["backbone.norm_f.weight"] = 1 + normal(0.2, D)
    w["backbone.embedding.weight"][V:] *= 0.1  # padding, which is never the likeliest
    return w


def save_original(name, weights, cfg):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(cfg) + "\n")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    torch.save({**weights, "lm_head.weight": weights["backbone.embedding.weight"]}, folder / "pytorch_model.bin")


def save_transformers(name, weights, cfg, ids, logits):
    """As transformers writes the same model, after a comparison of its logits."""
    import transformers

    sizes = {"vocab_size": PADDED, "hidden_size": D, "state_size": N, "num_hidden_layers": 2, "tie_word_embeddings": True}
    if name == "mamba2":
        config = transformers.Mamba2Config(**sizes, head_dim=MAMBA2["headdim"], num_heads=2 * D // MAMBA2["headdim"], n_groups=MAMBA2["ngroups"], chunk_size=16)
        model = transformers.Mamba2ForCausalLM(config)
    elif name == "mamba1":
        model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    else:
        model = transformers.FalconMambaForCausalLM(transformers.FalconMambaConfig(**sizes))
    renamed = {k.replace("embedding.", "embeddings."): v for k, v in weights.items()}
    model.load_state_dict({**renamed, "lm_head.weight": renamed["backbone.embeddings.weight"]})
    (HERE / (name + "-hf")).mkdir(exist_ok=True)
    model.eval().save_pretrained(HERE / (name + "-hf"))
    (HERE / (name + "-hf") / "generation_config.json").unlink(missing_ok=True)
    with torch.no_grad():
        theirs = model.double()(torch.tensor([ids])).logits[0]
    error = float((theirs - logits).abs().max() / logits.abs().max())
    print(name, "transformers' logits differ by at most %.1e of the largest" % error)
    assert error < 1e-5, "transformers computes parts in float32, but not that inexactly"


def make(name, cfg, seed):
    torch.manual_seed(seed)
    weights = draw(cfg)
    exact = {k: v.double().requires_grad_() for k, v in weights.items()}
    ids, states = torch.randint(1, V, (L,)).tolist(), {}
    logits = run(exact, cfg, ids, states)
    some = [k for k in weights if ".layers.0." in k and weights[k].numel() < 1000]
    gradients = torch.autograd.grad(F.cross_entropy(logits[:-1], torch.tensor(ids[1:])), [exact[k] for k in some])
    exact, logits = {k: v.detach() for k, v in exact.items()}, logits.detach()
    tokens, steps = list(ids), []
    for _ in range(16):
        steps.append(run(exact, cfg, tokens, {})[-1])
        best, second = steps[-1].topk(2).values
        assert best - second > 2e-3, "a near tie: use another seed"
        assert int(steps[-1].argmax()) < V, "a padding token"
        tokens.append(int(steps[-1].argmax()))
    golden = {"golden.input_ids": torch.tensor([ids]), "golden.logits": logits[None].float(), "golden.greedy": torch.tensor(tokens[L:]),
              "golden.greedy_logits": torch.stack(steps[:8]).float(), **{k: v.detach()[None].float().contiguous() for k, v in states.items()}, **{"golden.grad." + k: v.float() for k, v in zip(some, gradients)}}
    save_file(golden, HERE / (name + ".golden.safetensors"), {"model": "falcon_mamba" if name == "falcon" else "mamba_lm", "config": json.dumps(cfg)})
    if name != "falcon":
        save_original(name, weights, cfg)
    if name != "hybrid":
        save_transformers(name, weights, cfg, ids, logits)


if __name__ == "__main__":
    for seed, (name, cfg) in enumerate(MODELS.items(), 20):
        make(name, cfg, seed)
