#!/usr/bin/env python3
"""SeedVR's transformer in plain, readable PyTorch, float64 (equations: src/models/seedvr/MODEL.md): writes golden pairs
of small random models.

    tests/golden/seedvr/make.py tests/golden/seedvr       # dit3b.*, dit7b.*: the files in the tree
"""
import argparse
import json
import math
import pathlib

import torch
from safetensors.torch import save_file

SMALL = {
    "seedvr_dit3b": dict(vid_in_channels=3, vid_out_channels=2, vid_dim=4, vid_out_norm="fusedrms", txt_in_dim=6, txt_in_norm="fusedln", txt_dim=4, emb_dim=24, heads=2, head_dim=8, expand_ratio=4,
                         norm="fusedrms", norm_eps=1e-5, ada="single", qk_bias=False, qk_norm="fusedrms", patch_size=[1, 2, 2], num_layers=2, mm_layers=1, mlp_type="swiglu", msa_type=None,
                         block_type=["mmdit_sr"] * 2, window=[[2, 12, 14]] * 2, window_method=["720pwin_by_size_bysize", "720pswin_by_size_bysize"], rope_type="mmrope3d", rope_dim=6),
    "seedvr_dit7b": dict(vid_in_channels=3, vid_out_channels=2, vid_dim=4, txt_in_dim=6, txt_dim=4, emb_dim=24, heads=2, head_dim=16, expand_ratio=4, norm="fusedrms", norm_eps=1e-5, ada="single",
                         qk_bias=False, qk_rope=True, qk_norm="fusedrms", patch_size=[1, 2, 2], num_layers=2, shared_mlp=False, shared_qkv=False, mlp_type="normal", block_type=["mmdit_sr"] * 2,
                         window=[[2, 12, 14]] * 2, window_method=["720pwin_by_size_bysize", "720pswin_by_size_bysize"]),
}
SAMPLES = [((2, 8, 10), 3), ((3, 6, 14), 2)]  # (t, h, w) of the latents, text tokens


def windows(size, count, is_shifted):
    """Boxes of a token grid: (t0, t1, h0, h1, w0, w1), w outermost, t innermost."""
    s = math.sqrt(45 * 80 / (size[1] * size[2]))
    extent = [math.ceil(min(size[0], 30) / count[0])] + [math.ceil(round(size[d] * s) / count[d]) for d in (1, 2)]
    edges = []
    for n, k in zip(size, extent):
        if is_shifted and k < n:
            cuts = sorted({0, n} | {int((i + 0.5) * k) for i in range(n) if int((i + 0.5) * k) < n})
        else:
            cuts = list(range(0, n, k)) + [n]
        edges.append(list(zip(cuts, cuts[1:])))
    return [(*t, *h, *w) for w in edges[2] for h in edges[1] for t in edges[0]]


def rms(x, eps, weight=1.0):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def turn(x, angles):
    """Pairs (0,1), (2,3), ... of (n, heads, D) by angles (n, R)."""
    R = angles.shape[1]
    out, c, s = x.clone(), angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., 0:2 * R:2], x[..., 1:2 * R:2]
    out[..., 0:2 * R:2], out[..., 1:2 * R:2] = a * c - b * s, a * s + b * c
    return out


class Twin:
    def __init__(self, name, config, weights):
        self.is_3b, self.c, self.w = name == "seedvr_dit3b", config, {k: v.double() for k, v in weights.items()}

    def linear(self, x, key):
        bias = self.w.get(key + ".bias")
        y = x @ self.w[key + ".weight"].T
        return y if bias is None else y + bias

    def of(self, i, middle, stream):
        """The key's stream component."""
        return f"blocks.{i}.{middle}.{stream if not self.is_3b or i < self.c['mm_layers'] else 'all'}"

    def angles(self, i, box, n_text):
        freqs, axes = self.w[f"blocks.{i}.attn.rope.rope.freqs"], []
        for d in range(3):
            n = box[2 * d + 1] - box[2 * d]
            axes.append(torch.arange(n).double() + (n_text if d == 0 else 0) if self.is_3b else torch.linspace(-1, 1, n).double())
        grid = torch.meshgrid(*axes, indexing="ij")
        return torch.cat([g.reshape(-1, 1) * freqs for g in grid], 1)

    def attention(self, i, vid, txt, size):
        c, taps = self.c, {}
        H, D = c["heads"], c["head_dim"]
        qkv = {}
        for stream, x in (("vid", vid), ("txt", txt)):
            q, k, v = self.linear(x, self.of(i, "attn.proj_qkv", stream)).view(-1, 3, H, D).unbind(1)
            qkv[stream] = [rms(q, c["norm_eps"], self.w[self.of(i, "attn.norm_q", stream) + ".weight"]), rms(k, c["norm_eps"], self.w[self.of(i, "attn.norm_k", stream) + ".weight"]), v]
        if self.is_3b:
            freqs = self.w[f"blocks.{i}.attn.rope.rope.freqs"]
            at = torch.arange(len(txt)).double()[:, None]
            for j in (0, 1):
                qkv["txt"][j] = turn(qkv["txt"][j], torch.cat([at * freqs] * 3, 1))
        places = torch.arange(size[0] * size[1] * size[2]).view(size)
        out, texts, queries = torch.zeros(len(vid), H * D).double(), [], []
        for box in windows(size, c["window"][i], "swin" in c["window_method"][i]):
            rows = places[box[0]:box[1], box[2]:box[3], box[4]:box[5]].reshape(-1)
            a = self.angles(i, box, len(txt))
            q, k, v = (torch.cat([turn(x[rows], a) if j < 2 else x[rows], t]) for j, (x, t) in enumerate(zip(qkv["vid"], qkv["txt"])))
            p = torch.softmax(torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(D), -1)
            y = torch.einsum("hij,jhd->ihd", p, v).reshape(len(q), -1)
            out[rows] = y[:len(rows)]
            texts.append(y[len(rows):])
            queries.append(q)
        return self.linear(out, self.of(i, "attn.proj_out", "vid")), self.linear(torch.stack(texts).mean(0), self.of(i, "attn.proj_out", "txt")), torch.cat(queries)

    def mlp(self, i, x, stream):
        key = self.of(i, "mlp", stream)
        if self.is_3b:
            return self.linear(torch.nn.functional.silu(self.linear(x, key + ".proj_in_gate")) * self.linear(x, key + ".proj_in"), key + ".proj_out")
        return self.linear(torch.nn.functional.gelu(self.linear(x, key + ".proj_in"), approximate="tanh"), key + ".proj_out")

    def modulated(self, i, streams, emb, layer, is_last):
        """Per stream: the normed, scaled and shifted rows, and the gate."""
        for name, x in streams.items():
            normed = rms(x, self.c["norm_eps"])
            if is_last and name == "txt":
                yield name, normed, 1.0
                continue
            of = {k: emb[:, int(layer == "mlp"), j] + self.w[self.of(i, "ada", name) + f".{layer}_{k}"] for j, k in enumerate(("shift", "scale", "gate"))}
            yield name, normed * of["scale"] + of["shift"], of["gate"]

    def run(self, vid, txt, timestep):
        c, taps = self.c, {}
        t, h, w = vid.shape[:3]
        size = (t, h // 2, w // 2)
        patches = vid.view(t, h // 2, 2, w // 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(size[0] * size[1] * size[2], -1)
        angle = timestep * torch.exp(-math.log(10000) * torch.arange(128).double() / 128)
        silu = torch.nn.functional.silu
        e = self.linear(silu(self.linear(silu(self.linear(torch.cat([angle.sin(), angle.cos()]), "emb_in.proj_in")), "emb_in.proj_hid")), "emb_in.proj_out")
        emb = e.view(-1, 2, 3)
        streams = {"vid": self.linear(patches, "vid_in.proj"), "txt": self.linear(txt, "txt_in")}
        taps |= {"emb": e[None], "vid_tokens": streams["vid"], "txt_tokens": streams["txt"]}
        for i in range(c["num_layers"]):
            is_last = self.is_3b and i == c["num_layers"] - 1
            parts = {name: (x, gate) for name, x, gate in self.modulated(i, streams, emb, "attn", is_last)}
            a = dict(zip(("vid", "txt", "q"), self.attention(i, parts["vid"][0], parts["txt"][0], size)))
            if i == 1:
                taps["window_q1"] = a["q"]
            streams = {s: streams[s] + parts[s][1] * a[s] for s in streams}
            after = {name: streams[name] if is_last and name == "txt" else gate * self.mlp(i, x, name) for name, x, gate in self.modulated(i, streams, emb, "mlp", is_last)}
            streams = {s: streams[s] + after[s] for s in streams}
            taps |= {f"block{i}.vid": streams["vid"], f"block{i}.txt": streams["txt"]}
        x = streams["vid"]
        if self.is_3b:
            x = rms(x, c["norm_eps"], self.w["vid_out_norm.weight"]) * (emb[:, 0, 1] + self.w["vid_out_ada.out_scale"]) + emb[:, 0, 0] + self.w["vid_out_ada.out_shift"]
        y = self.linear(x, "vid_out.proj").view(*size, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(t * h * w, -1)
        return taps | {"vid_out": y}


def random_weights(name, c):
    """A state_dict's names and shapes; values for which every term matters."""
    is_3b, C, inner, D = name == "seedvr_dit3b", c["vid_dim"], c["heads"] * c["head_dim"], c["head_dim"]
    F = -(-(2 * C * c["expand_ratio"] // 3) // 256) * 256 if is_3b else C * c["expand_ratio"]
    w = {}

    def put(key, *shape, scale=None, mean=0.0):
        w[key] = (mean + torch.randn(*shape) * (scale or 1 / math.sqrt(shape[-1]))).float()

    def linear(key, n, k, bias=True):
        put(key + ".weight", n, k)
        if bias:
            put(key + ".bias", n, scale=0.3)

    linear("vid_in.proj", C, 4 * c["vid_in_channels"])
    linear("txt_in", C, c["txt_in_dim"])
    for key, n, k in (("proj_in", C, 256), ("proj_hid", C, C), ("proj_out", 6 * C, C)):
        linear("emb_in." + key, n, k)
    for i in range(c["num_layers"]):
        n = (c["rope_dim"] if is_3b else D // 2) // 3 // 2
        j = torch.arange(n).double()
        w[f"blocks.{i}.attn.rope.rope.freqs"] = (10000 ** (-2 * j / (c["rope_dim"] // 3)) if is_3b else math.pi * torch.linspace(1, 128, n).double()).float()
        for stream in ("vid", "txt") if not is_3b or i < c["mm_layers"] else ("all",):
            linear(f"blocks.{i}.attn.proj_qkv.{stream}", 3 * inner, C, bias=False)
            put(f"blocks.{i}.attn.norm_q.{stream}.weight", D, mean=1.0, scale=0.3)
            put(f"blocks.{i}.attn.norm_k.{stream}.weight", D, mean=1.0, scale=0.3)
            linear(f"blocks.{i}.attn.proj_out.{stream}", C, inner)
            for layer in ("attn", "mlp"):
                for kind, mean in (("shift", 0.0), ("scale", 1.0), ("gate", 0.5)):
                    put(f"blocks.{i}.ada.{stream}.{layer}_{kind}", C, mean=mean, scale=0.2)
            linear(f"blocks.{i}.mlp.{stream}.proj_in", F, C, bias=not is_3b)
            if is_3b:
                linear(f"blocks.{i}.mlp.{stream}.proj_in_gate", F, C, bias=False)
            linear(f"blocks.{i}.mlp.{stream}.proj_out", C, F, bias=not is_3b)
    if is_3b:
        put("vid_out_norm.weight", C, mean=1.0, scale=0.3)
        put("vid_out_ada.out_shift", C, scale=0.3)
        put("vid_out_ada.out_scale", C, mean=1.0, scale=0.3)
    linear("vid_out.proj", 4 * c["vid_out_channels"], C)
    return w


def write_pair(name, folder, seed):
    torch.manual_seed(seed)
    config = SMALL[name]
    weights = random_weights(name, config)
    twin, parts, vids, txts, timesteps = Twin(name, config, weights), [], [], [], [731.25, 4.5]
    for (size, n_text), timestep in zip(SAMPLES, timesteps):
        vids.append(torch.randn(*size, config["vid_in_channels"]))
        txts.append(torch.randn(n_text, config["txt_in_dim"]))
        parts.append(twin.run(vids[-1].double(), txts[-1].double(), timestep))
    golden = {f"golden.{k}": torch.cat([p[k] for p in parts]).float().contiguous() for k in parts[0]}
    golden |= {"golden.vid": torch.cat([v.reshape(-1, v.shape[-1]) for v in vids]), "golden.txt": torch.cat(txts), "golden.timestep": torch.tensor(timesteps),
               "golden.vid_shape": torch.tensor([s for s, _ in SAMPLES], dtype=torch.int32), "golden.txt_shape": torch.tensor([[n] for _, n in SAMPLES], dtype=torch.int32)}
    about = {"model": name, "config": json.dumps(config), "seed": str(seed)}
    short = name.removeprefix("seedvr_")
    save_file(weights, folder / f"{short}.weights.safetensors", about)
    save_file(golden, folder / f"{short}.golden.safetensors", about)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    for i, name in enumerate(SMALL):
        write_pair(name, given.folder, given.seed + i)


if __name__ == "__main__":
    main()
