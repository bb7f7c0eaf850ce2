"""Makes tests/golden/videomamba: two tiny VideoMambas and two tiny Vims with random weights, and what they compute, by the
equations of src/models/videomamba/MODEL.md in float64: a classifier, and the form of multimodal models, which returns all
tokens, with some gradients of sum(result loss_w); Vim with an odd number of patches, and with patches that overlap.
Needs torch, safetensors. Usage: python3 make.py [NAME...]"""
import argparse
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
D, N, RANK, LAYERS, PATCH, EDGE, B = 24, 16, 2, 2, 4, 2, 2


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def scan(x, z, w, direction):
    """One direction of the mixer, over (B, L, channels)."""
    get = lambda name, end="": w["%s%s%s" % (name, direction, end)]
    taps = get("conv1d", ".weight")[:, 0]
    padded = F.pad(x, (0, 0, taps.shape[1] - 1, 0))
    u = F.silu(sum(padded[:, k:k + x.shape[1]] * taps[:, k] for k in range(taps.shape[1])) + get("conv1d", ".bias"))
    dt, b, c = (u @ get("x_proj", ".weight").T).split([RANK, N, N], -1)
    d = F.softplus(dt @ get("dt_proj", ".weight").T + get("dt_proj", ".bias"))
    A = -w["A%s_log" % direction].exp()
    state, y = x.new_zeros(len(x), *A.shape), []
    for t in range(x.shape[1]):
        state = torch.exp(d[:, t, :, None] * A) * state + (d[:, t] * u[:, t])[..., None] * b[:, t, None]
        y.append((state * c[:, t, None]).sum(-1) + get("D") * u[:, t])
    return torch.stack(y, 1) * F.silu(z)


def layers(w, x, share):
    """All layers and the last norm; share: of the two directions' sum that goes on."""
    for i in range(sum(k.endswith("in_proj.weight") for k in w)):
        at = "layers.%d." % i
        m = {k[len(at + "mixer."):]: v for k, v in w.items() if k.startswith(at + "mixer.")}
        u, z = (rms(x, w[at + "norm.weight"]) @ m["in_proj.weight"].T).chunk(2, -1)
        y = scan(u, z, m, "") + scan(u.flip(1), z.flip(1), m, "_b").flip(1)
        x = x + y * share @ m["out_proj.weight"].T
    return rms(x, w["norm_f.weight" if "norm_f.weight" in w else "norm.weight"])


def run_vim(w, images, stride):
    """Logits."""
    patches = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=stride).flatten(2).permute(0, 2, 1)
    middle = patches.shape[1] // 2
    x = torch.cat((patches[:, :middle], w["cls_token"].expand(len(images), -1, -1), patches[:, middle:]), 1) + w["pos_embed"]
    return layers(w, x, 0.5)[:, middle] @ w["head.weight"].T + w["head.bias"]


def run(w, frames):
    """All tokens after the last norm; a classifier's logits, if it is one."""
    patches = F.conv3d(frames, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=(1,) + tuple(w["patch_embed.proj.weight"].shape[3:]))
    tokens = patches.flatten(3).permute(0, 2, 3, 1) + w["pos_embed"][:, 1:] + w["temporal_pos_embedding"][0][:, None]
    x = torch.cat(((w["cls_token"] + w["pos_embed"][:, :1]).expand(len(frames), -1, -1), tokens.flatten(1, 2)), 1)
    x = layers(w, x, 1)
    return x, x[:, 0] @ w["head.weight"].T + w["head.bias"] if "head.weight" in w else None


def draw(n_frames, n_classes):
    normal = lambda deviation, *shape: torch.randn(shape) * deviation
    w = {"cls_token": normal(0.5, 1, 1, D), "pos_embed": normal(0.5, 1, 1 + EDGE * EDGE, D), "temporal_pos_embedding": normal(0.5, 1, n_frames, D),
         "patch_embed.proj.weight": normal(0.2, D, 3, 1, PATCH, PATCH), "patch_embed.proj.bias": normal(0.2, D)}
    for i in range(LAYERS):
        at = "layers.%d." % i
        w.update({at + "norm.weight": 1 + normal(0.2, D), at + "mixer.in_proj.weight": normal(0.25, 4 * D, D), at + "mixer.out_proj.weight": normal(0.15, D, 2 * D)})
        for e in ("", "_b"):
            m = {"A%s_log" % e: normal(0.5, 2 * D, N), "D" + e: normal(1, 2 * D), "conv1d%s.weight" % e: normal(0.5, 2 * D, 1, 4), "conv1d%s.bias" % e: normal(0.2, 2 * D),
                 "x_proj%s.weight" % e: normal(0.2, RANK + 2 * N, 2 * D), "dt_proj%s.weight" % e: normal(0.5, 2 * D, RANK), "dt_proj%s.bias" % e: normal(1, 2 * D)}
            w.update({at + "mixer." + k: v for k, v in m.items()})
    w["norm_f.weight" if n_classes else "norm.weight"] = 1 + normal(0.2, D)
    if n_classes:
        w.update({"head.weight": normal(0.3, n_classes, D), "head.bias": normal(0.2, n_classes)})
    return w


def make(name, model, n_frames, n_classes, seed):
    torch.manual_seed(seed)
    w = draw(n_frames, n_classes)
    frames = torch.randn(B, 3, n_frames, PATCH * EDGE, PATCH * EDGE)
    exact, film = {k: v.double().requires_grad_() for k, v in w.items()}, frames.double().requires_grad_()
    tokens, logits = run(exact, film)
    out, name_of_out = [(tokens, "x_vis"), (logits, "logits")][n_classes > 0]
    loss_w = torch.randn(out.shape)
    some = [k for k in w if w[k].numel() < 1000]
    grads = torch.autograd.grad((out * loss_w).sum(), [film] + [exact[k] for k in some])
    config = {"img_size": PATCH * EDGE, "patch_size": PATCH, "depth": LAYERS, "embed_dim": D, "num_frames": n_frames, **({"num_classes": n_classes} if n_classes else {})}
    save_file(w, HERE / (name + ".weights.safetensors"), {"model": model, "config": json.dumps(config)})
    golden = {"golden.input": frames, "golden." + name_of_out: out.detach().float(), "golden.loss_w_" + name_of_out: loss_w,
              **{k: v.float().contiguous() for k, v in zip(["golden.grad_input"] + ["golden.grad." + k for k in some], grads)}}
    save_file(golden, HERE / (name + ".golden.safetensors"), {"model": model, "config": json.dumps(config)})


def make_vim(name, model, edge, stride, n_classes, seed):
    """Weights of an image's model: no embeddings of time, patches without depth."""
    torch.manual_seed(seed)
    w = draw(1, n_classes)
    del w["temporal_pos_embedding"]
    w["patch_embed.proj.weight"] = w["patch_embed.proj.weight"][:, :, 0].contiguous()
    w["pos_embed"] = torch.randn(1, 1 + edge * edge, D) * 0.5
    side = (edge - 1) * stride + PATCH
    images = torch.randn(B, 3, side, side)
    logits = run_vim({k: v.double() for k, v in w.items()}, images.double(), stride)
    if model == "vim":
        save_file(w, HERE / (name + ".weights.safetensors"), {"model": model})
    else:  # as upstream's training script does
        torch.save({"model": w, "epoch": 3, "args": argparse.Namespace(lr=0.001, model=model, resume=None)}, HERE / (name + ".pth"))
    save_file({"golden.input": images, "golden.logits": logits.float()}, HERE / (name + ".golden.safetensors"), {"model": model})


MADE = {"video_sm": lambda: make("video_sm", "videomamba", 3, 10, 41), "video_mm": lambda: make("video_mm", "videomamba_mm", 2, 0, 42),
        "vim": lambda: make_vim("vim", "vim", 3, PATCH, 10, 43),
        "vim_stride": lambda: make_vim("vim_stride", "vim_tiny_patch4_stride2_10_bimambav2_final_pool_mean_abs_pos_embed_with_midclstok_div2", 4, 2, 10, 44)}

if __name__ == "__main__":
    for name in sys.argv[1:] or MADE:
        MADE[name]()
