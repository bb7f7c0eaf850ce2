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
    "mamba3": {**COMMON, "n_layer": 2, "tie_embeddings": True,
               "ssm_cfg": {"layer": "Mamba3", "d_state": N, "headdim": 8, "ngroups": 2, "is_outproj_norm": True, "A_floor": 0.6, "A_activation": "softplus"}},
    "mamba3-mimo": {**COMMON, "n_layer": 2, "tie_embeddings": True,
                    "ssm_cfg": {"layer": "Mamba3", "d_state": N, "headdim": 16, "is_mimo": True, "mimo_rank": 2, "rope_fraction": 1.0, "A_activation": "heavy_tail"}},
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


def turn(x, angle, by_halves):
    """Pairs of the last axis turned by angle (heads, pairs): neighbours, or entries half of it apart; the rest stays."""
    pairs, n, x = angle.shape[-1], x.shape[-1], x.clone()
    first = torch.arange(pairs) if by_halves else 2 * torch.arange(pairs)
    second = first + (n // 2 if by_halves else 1)
    a, b = x[..., first], x[..., second]
    turned = torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()))
    return x.index_copy(-1, first, turned[0]).index_copy(-1, second, turned[1])


def mamba3(h, w, cfg, states):
    heads, ranks, n = w["B_bias"].shape
    P, groups, is_mimo = cfg["headdim"], cfg.get("ngroups", 1), cfg.get("is_mimo", False)
    inner, pairs = heads * P, int(n * cfg.get("rope_fraction", 0.5)) // 2
    z, x, B, C, dt, A, trap, angles = (h @ w["in_proj.weight"].T).split([inner, inner, ranks * groups * n, ranks * groups * n, heads, heads, heads, pairs], -1)
    z, x = (v.unflatten(-1, (heads, P)) for v in (z, x))
    B, C = ((rms(v.unflatten(-1, (ranks, groups, n)), 1e-5) * w[k]).repeat_interleave(heads // groups, 2).transpose(1, 2) + w[bias]
            for v, k, bias in ((B, "B_norm.weight", "B_bias"), (C, "C_norm.weight", "C_bias")))  # (L, heads, ranks, n)
    dt = F.softplus(dt + w["dt_bias"])
    rate = F.softplus(A) if cfg["A_activation"] == "softplus" else torch.where(A >= 0, 1 + A, 1 / (1 - A.clamp(max=0)))
    decay, share = torch.exp(-dt * rate.clamp(min=cfg.get("A_floor", 1e-4))), torch.sigmoid(trap)
    into, gate, back = (w[k] if is_mimo else h.new_ones(heads, 1, P) for k in ("mimo_x", "mimo_z", "mimo_o"))
    theta, state, last, out = h.new_zeros(heads, pairs), h.new_zeros(heads, P, n), h.new_zeros(heads, P, n), []
    for t in range(len(h)):
        theta = theta + torch.pi * torch.tanh(angles[t]) * dt[t, :, None]
        k, q = (turn(v[t], theta[:, None], is_mimo) for v in (B, C))
        new, a, d, s = torch.einsum("hrp,hrn->hpn", x[t, :, None] * into, k), decay[t, :, None, None], dt[t, :, None, None], share[t, :, None, None]
        state, last = a * state + (1 - s) * d * a * last + s * d * new, new
        y = torch.einsum("hpn,hrn->hrp", state, q) + w["D"][:, None, None] * x[t, :, None] * into
        if "norm.weight" in w:
            y = rms(y, 1e-5) * w["norm.weight"].view(heads, 1, P)
        out.append((y * F.silu(z[t, :, None] * gate) * back).sum(1))
    states.update(angle_state=theta % (2 * torch.pi), ssm_state=state, k_state=k.transpose(0, 1), v_state=x[-1])
    return torch.stack(out).flatten(1) @ w["out_proj.weight"].T


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
        elif "B_bias" in w:
            stream = stream + mamba3(h, w, cfg["ssm_cfg"], kept)
        elif "dt_bias" in w:
            stream = stream + mamba2(h, w, cfg["ssm_cfg"], kept)
        else:
            stream = stream + mamba1(h, w, "hidden_size" in cfg, kept)
        states.update({"golden.%s.%d" % (k, i): v for k, v in kept.items()})
    return rms(stream, 1e-5) * weights["backbone.norm_f.weight"] @ table.T


def draw_mamba3(ssm, normal):
    inner, P, ranks, fraction = 2 * D, ssm["headdim"], ssm.get("mimo_rank", 1), ssm.get("rope_fraction", 0.5)
    heads = inner // P
    columns = 2 * inner + 2 * N * ssm.get("ngroups", 1) * ranks + 3 * heads + int(N * fraction) // 2
    m = {"dt_bias": normal(1, heads) - 1, "B_bias": 1 + normal(0.3, heads, ranks, N), "C_bias": 1 + normal(0.3, heads, ranks, N), "D": normal(1, heads),
         "in_proj.weight": normal(0.3, columns, D), "B_norm.weight": 1 + normal(0.2, N), "C_norm.weight": 1 + normal(0.2, N), "out_proj.weight": normal(0.3, D, inner)}
    if ssm.get("is_mimo"):
        m.update({"mimo_x": 0.5 + normal(0.2, heads, ranks, P), "mimo_z": 1 + normal(0.2, heads, ranks, P), "mimo_o": 0.5 + normal(0.2, heads, ranks, P)})
    if ssm.get("is_outproj_norm"):
        m["norm.weight"] = 1 + normal(0.2, inner)
    return m


def draw(cfg):
    """Random weights under mamba_ssm's names."""
    def normal(deviation, *shape):
        return torch.randn(shape) * deviation

    w, layers = {"backbone.embedding.weight": normal(0.5, PADDED, D)}, cfg.get("n_layer") or cfg["num_hidden_layers"]
    for i in range(layers):
        at, inner, ssm = "backbone.layers.%d." % i, 2 * D, cfg.get("ssm_cfg", {})
        if ssm.get("layer") == "Mamba3":
            w.update({at + "mixer." + k: v for k, v in draw_mamba3(ssm, normal).items()})
            w[at + "norm.weight"] = 1 + normal(0.2, D)
            continue
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
    if name in ("mamba1", "mamba2", "falcon"):
        save_transformers(name, weights, cfg, ids, logits)


if __name__ == "__main__":
    for seed, (name, cfg) in enumerate(MODELS.items(), 20):
        make(name, cfg, seed)
