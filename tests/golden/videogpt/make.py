"""Makes tiny.weights.safetensors and tiny.golden.safetensors: a tiny Mobile-VideoGPT with random weights, and what it
computes from pictures and video tokens given by a formula, by the equations of src/models/{videogpt,clip,qwen2}/MODEL.md in
float64. Needs torch, safetensors. Usage: python3 make.py

frames.golden.safetensors and sampling.json were recorded from the published program (OpenCV 5.0.0, Pillow): pictures
as decoded, samples of the two towers' inputs made of them, and positions of frames for numbers of frames and rates."""
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
C, H, V, WIDTH, EDGE = 8, 8, 260, 576, 14  # CLIP's, the language model's; the video tower's as published; patches a side
CONFIG = {"clip": {"hidden_size": C, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": EDGE, "patch_size": 1, "hidden_act": "quick_gelu",
                   "layer_norm_eps": 1e-5},
          "qwen": {"vocab_size": V, "hidden_size": H, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_act": "silu",
                   "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "use_sliding_window": False}}
TOWER = "model.image_vision_tower.vision_tower.vision_model."
TEXT = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n", "\nWhat happens in the video?<|im_end|>\n<|im_start|>assistant\n")


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)


def heads(x, n):
    """(..., L, n D) -> (..., n, L, D)."""
    return x.unflatten(-1, (n, -1)).transpose(-2, -3)


def attend(q, k, v, mask=0):
    return ((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v).transpose(-2, -3).flatten(-2)


def clip(w, cfg, images):
    """The hidden state before the last layer, without the class token."""
    norm = lambda name, x: F.layer_norm(x, x.shape[-1:], w[TOWER + name + ".weight"], w[TOWER + name + ".bias"], cfg["layer_norm_eps"])
    patches = F.conv2d(images, w[TOWER + "embeddings.patch_embedding.weight"], stride=cfg["patch_size"]).flatten(2).transpose(1, 2)
    first = w[TOWER + "embeddings.class_embedding"].expand(len(images), 1, -1)
    x = norm("pre_layrnorm", torch.cat((first, patches), 1) + w[TOWER + "embeddings.position_embedding.weight"])
    for i in range(cfg["num_hidden_layers"] - 1):
        at = "encoder.layers.%d." % i
        h = norm(at + "layer_norm1", x)
        q, k, v = (heads(linear(w, TOWER + at + "self_attn.%s_proj" % p, h), cfg["num_attention_heads"]) for p in "qkv")
        x = x + linear(w, TOWER + at + "self_attn.out_proj", attend(q, k, v))
        h = linear(w, TOWER + at + "mlp.fc1", norm(at + "layer_norm2", x))
        x = x + linear(w, TOWER + at + "mlp.fc2", h * torch.sigmoid(1.702 * h))
    return x[:, 1:]


def scores(features):
    """(2, 8): a frame's columns of softmax(X X^T / sqrt C), summed; X has 8 frames' rows."""
    X = features.unflatten(0, (2, 8)).flatten(1, 2)
    return (X @ X.transpose(1, 2) / X.shape[-1] ** 0.5).softmax(-1).sum(1).unflatten(1, (8, -1)).sum(-1)


def project(w, name, x, edge):
    """(n, EDGE^2, width) -> (n, edge^2, H)."""
    x = linear(w, name + ".mlp.mlp.2", F.gelu(linear(w, name + ".mlp.mlp.0", x)))
    x = F.adaptive_avg_pool2d(x.transpose(1, 2).unflatten(2, (EDGE, EDGE)), edge)
    taps = w[name + ".peg.peg.0.weight"]
    return (x + F.conv2d(x, taps, w[name + ".peg.peg.0.bias"], padding=1, groups=len(taps))).flatten(2).transpose(1, 2)


def values(u, scale):
    return ((u[:, None] * scale) % 251 - 125).double() / 64


def video(w, u, scale):
    """The chosen frames' tokens, (1 + 8 EDGE^2, WIDTH), pooled 2 x 2 and projected: (2, 49, H)."""
    tokens = values(u, scale)[1:]
    pooled = F.avg_pool2d(tokens.unflatten(0, (8, EDGE, EDGE)).permute(0, 3, 1, 2), 2).flatten(2).transpose(1, 2)
    return project(w, "model.mm_projector", pooled.reshape(2, EDGE * EDGE, -1), 7)


def qwen2(w, cfg, x):
    """Logits of every row."""
    n, n_kv = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    width = cfg["hidden_size"] // n
    norm = lambda name, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + cfg["rms_norm_eps"]) * w[name + ".weight"]
    angle = torch.arange(len(x))[:, None] * cfg["rope_theta"] ** -(torch.arange(0, width, 2).double() / width)
    cos, sin = (torch.cat((v, v), -1) for v in (angle.cos(), angle.sin()))
    rotary = lambda v: v * cos + torch.cat((-v[..., width // 2:], v[..., :width // 2]), -1) * sin
    mask = torch.full((len(x), len(x)), float("-inf"), dtype=x.dtype).triu(1)
    for i in range(cfg["num_hidden_layers"]):
        at = "model.layers.%d." % i
        h = norm(at + "input_layernorm", x)
        q, k, v = (heads(linear(w, at + "self_attn.%s_proj" % p, h), n if p == "q" else n_kv) for p in "qkv")
        k, v = (t.repeat_interleave(n // n_kv, 0) for t in (rotary(k), v))
        x = x + linear(w, at + "self_attn.o_proj", attend(rotary(q), k, v, mask))
        h = norm(at + "post_attention_layernorm", x)
        x = x + linear(w, at + "mlp.down_proj", F.silu(linear(w, at + "mlp.gate_proj", h)) * linear(w, at + "mlp.up_proj", h))
    return norm("model.norm", x) @ w["model.embed_tokens.weight"].T


def draw():
    w = {}

    def put(name, *shape, deviation=0.4):
        w[name] = torch.randn(shape) * deviation + (1 if "norm" in name and name.endswith("weight") else 0)

    def put_linear(name, rows, columns, bias=True):
        put(name + ".weight", rows, columns, deviation=1.2 / columns ** 0.5)
        if bias:
            put(name + ".bias", rows, deviation=0.1)

    def put_norm(name, n, bias=True):
        for part in ("weight", "bias")[:1 + bias]:
            put(name + "." + part, n, deviation=0.2)

    put("model.embed_tokens.weight", V, H)
    for i in range(2):
        at = "model.layers.%d." % i
        for p in "qkvo":
            put_linear(at + "self_attn.%s_proj" % p, H, H, p != "o")
        for p in ("gate", "up"):
            put_linear(at + "mlp.%s_proj" % p, 24, H, False)
        put_linear(at + "mlp.down_proj", H, 24, False)
        put_norm(at + "input_layernorm", H, False), put_norm(at + "post_attention_layernorm", H, False)
    put_norm("model.norm", H, False)
    put(TOWER + "embeddings.class_embedding", C), put(TOWER + "embeddings.patch_embedding.weight", C, 3, 1, 1)
    put(TOWER + "embeddings.position_embedding.weight", 1 + EDGE * EDGE, C), put_norm(TOWER + "pre_layrnorm", C)
    for i in range(3):
        at = TOWER + "encoder.layers.%d." % i
        for p in ("q_proj", "k_proj", "v_proj", "out_proj"):
            put_linear(at + "self_attn." + p, C, C)
        put_linear(at + "mlp.fc1", 24, C), put_linear(at + "mlp.fc2", C, 24)
        put_norm(at + "layer_norm1", C), put_norm(at + "layer_norm2", C)
    for name, width in (("model.image_mm_projector", C), ("model.mm_projector", WIDTH)):
        put_linear(name + ".mlp.mlp.0", H, width), put_linear(name + ".mlp.mlp.2", H, H)
        put(name + ".peg.peg.0.weight", H, 1, 3, 3, deviation=0.2), put(name + ".peg.peg.0.bias", H, deviation=0.1)
    return w


def tokens_of(text):
    """A token a byte, but for two marks."""
    return [ord(c) for c in text.replace("<|im_start|>", "\u0100").replace("<|im_end|>", "\u0101")]


def main():
    torch.manual_seed(31)
    stored = draw()
    w = {k: v.double() for k, v in stored.items()}
    image_u, image_w = torch.randint(0, 251, (16 * 3,)), torch.randint(1, 251, (EDGE * EDGE,))
    u, scale = torch.randint(0, 251, (1 + 8 * EDGE * EDGE,)), torch.randint(1, 251, (WIDTH,))
    features = clip(w, CONFIG["clip"], values(image_u, image_w).view(16, 3, EDGE, EDGE))
    s = scores(features)
    order = s.sort(1, descending=True)
    assert float((order.values[:, 3] - order.values[:, 4]).min() / s.max()) > 1e-3, "a near tie of two frames: use another seed"
    before, after = map(tokens_of, TEXT)
    projected, table = video(w, u, scale), w["model.embed_tokens.weight"]
    context = project(w, "model.image_mm_projector", features, 12).flatten(0, 1)
    rows = torch.cat((table[before], context, projected.flatten(0, 1), table[after]))
    generated, steps = [], []
    for _ in range(6):
        steps.append(qwen2(w, CONFIG["qwen"], torch.cat((rows, table[generated])))[-1])
        top = steps[-1].topk(2)
        assert top.values[0] - top.values[1] > 2e-3, "a near tie: use another seed"
        generated.append(int(top.indices[0]))
    golden = {"image_u": image_u, "image_w": image_w, "scores": s, "selected": order.indices[:, :4].sort(1).values, "video_u": u, "video_w": scale, "video_projected": projected,
              "input_ids": torch.tensor(before + [-200] * 16 + after), "inputs_embeds": rows, "prefill_logits_last": steps[0], "generated": torch.tensor(generated),
              "step_logits": torch.stack(steps)}
    golden = {"golden." + k: v.float().contiguous() if v.is_floating_point() else v.int().contiguous() for k, v in golden.items()}
    save_file(stored, HERE / "tiny.weights.safetensors", {"model": "mobilevideogpt", "config": json.dumps(CONFIG)})
    save_file(golden, HERE / "tiny.golden.safetensors", {"model": "mobilevideogpt", "topK": "True"})


if __name__ == "__main__":
    main()
