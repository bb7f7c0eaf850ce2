"""Clients with their own blocks: as Vim, VideoMamba, SegMamba and VMamba construct and call these."""

import copy
import functools
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import refs
import selective_scan_cuda_core
import selective_scan_cuda_ndstate
import selective_scan_cuda_oflex
from mamba_ssm import Mamba
from mamba_ssm.ops.triton.layernorm import RMSNorm, layer_norm_fn, rms_norm_fn  # version 1's path


# ---- bidirectional blocks ---------------------------------------------------------------------------------------------
def reference(m, hidden):
    """The blocks' equations in float64, direction by direction, backward ones on reversed sequences."""
    p = {k: v.detach().cpu().double().requires_grad_() for k, v in m.state_dict().items()}
    xz = F.linear(hidden.cpu().double(), p["in_proj.weight"], p.get("in_proj.bias")).transpose(1, 2)
    length, n = xz.shape[2], m.nslices

    def direction(s, xz, shared=""):
        return refs.mamba_inner(xz, p["conv1d%s.weight" % shared], p["conv1d%s.bias" % shared], p["x_proj%s.weight" % shared], p["dt_proj%s.weight" % shared], None, None,
                                -torch.exp(p["A%s_log" % s]), None, None, p["D" + shared], p["dt_proj%s.bias" % shared])

    y = direction("", xz)
    if m.bimamba_type == "v1":  # both convolutions run forward, only the scan is reversed
        x, z = xz.chunk(2, dim=1)
        x, _ = refs.conv(x, p["conv1d.weight"].squeeze(1), p["conv1d.bias"], use_silu=True)
        dt, B, C = F.linear(x.transpose(1, 2), p["x_proj.weight"]).split([m.dt_rank, m.d_state, m.d_state], dim=-1)
        dt = F.linear(dt, p["dt_proj.weight"]).transpose(1, 2)
        y = y + refs.scan(x, dt, -torch.exp(p["A_b_log"]), B.transpose(1, 2), C.transpose(1, 2), p["D"], z, p["dt_proj.bias"], True, reverse=True)[0]
    else:
        y = y + direction("_b", xz.flip(-1), "_b").flip(-1)
    if m.bimamba_type == "v3":
        mixed = torch.stack(xz.chunk(n, dim=-1), dim=-1).flatten(-2)
        y = y + direction("_s", mixed, "_s").reshape(*y.shape[:2], length // n, n).permute(0, 1, 3, 2).flatten(-2)
    out = F.linear((y / 2 if m.if_divide_out else y).transpose(1, 2), p["out_proj.weight"], p.get("out_proj.bias"))
    return p, out if m.init_layer_scale is None else out * p["gamma"]


@pytest.mark.parametrize("options", [dict(bimamba_type="v1"), dict(bimamba_type="v2"), dict(bimamba_type="v2", if_divide_out=True, init_layer_scale=1e-2),
                                     dict(bimamba_type="v3", nslices=4), dict(bimamba_type="v3", nslices=5, init_layer_scale=0.5, bias=True), dict(bimamba=True)], ids=str)
def test_bidirectional(device, options):
    """Output and the gradient of every parameter."""
    m = Mamba(d_model=16, d_state=4, **options).to(device)
    with torch.no_grad():
        for name, parameter in m.named_parameters():
            if "A_" in name or name.startswith("D"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(2, 20, 16, device=device)
    p, want = reference(m, x)
    out = m(x)
    refs.close(out, want, (1e-4, 1e-4))
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for name, parameter in m.named_parameters():
        refs.close(parameter.grad, p[name].grad, (2e-3, 2e-3))


def test_constructors():
    """As written in the clients, with their parameter names."""
    vim = Mamba(16, layer_idx=3, bimamba_type="v2", if_divide_out=True, init_layer_scale=1e-5, d_state=8)
    assert {"gamma", "A_b_log", "D_b", "conv1d_b.weight", "x_proj_b.weight", "dt_proj_b.weight"} <= set(vim.state_dict()) and vim.if_divide_out
    assert Mamba(16, bimamba_type="v2", if_devide_out=True).if_divide_out  # an older spelling
    seg = Mamba(d_model=16, d_state=16, d_conv=4, expand=2, bimamba_type="v3", nslices=2)
    assert {"A_s_log", "D_s", "conv1d_s.weight", "x_proj_s.weight", "dt_proj_s.weight", "A_b_log"} <= set(seg.state_dict())
    one = set(Mamba(16, bimamba_type="v1").state_dict()) - set(Mamba(16).state_dict())
    assert one == {"A_b_log"} and not Mamba(16, bimamba_type="none").bimamba
    with pytest.raises(ValueError, match="must be none, v1, v2 or v3"):
        Mamba(16, bimamba_type="v4")
    with pytest.raises(ValueError, match="5 equal slices"):
        Mamba(16, bimamba_type="v3")(torch.randn(1, 12, 16))


def test_layer_scale_in_steps():
    """init_layer_scale also works in one-directional blocks, and in decoding steps."""
    from mamba_ssm.utils.generation import InferenceParams
    m, params = Mamba(16, init_layer_scale=0.25, layer_idx=0).eval(), InferenceParams(max_seqlen=6, max_batch_size=2)
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        want, got = m(x), [m(x[:, :4], inference_params=params)]
        for i in (4, 5):
            params.seqlen_offset = i
            got.append(m(x[:, i:i + 1], inference_params=params))
    refs.close(torch.cat(got, 1), want, (1e-4, 1e-5))


# ---- extension modules --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("module", ["causal_conv1d_cuda", "selective_scan_cuda", "selective_scan_cuda_oflex", "selective_scan_cuda_core", "selective_scan_cuda_ndstate"])
def test_extension_modules_stand_alone(tmp_path, module):
    """A fork's causal_conv1d that imports causal_conv1d_cuda comes first on the path: no import cycle."""
    for package in ("causal_conv1d", "mamba_ssm"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("import causal_conv1d_cuda, selective_scan_cuda\nfork = True\n")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path)] + [p for p in sys.path if p]))
    code = "import causal_conv1d, mamba_ssm, %s as m; assert causal_conv1d.fork and mamba_ssm.fork; print([n for n in dir(m) if not n.startswith('_')])" % module
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fwd" in done.stdout


def vmamba(device, dtype=torch.float32, n=4, each=1):
    """VMamba's cross scan inputs: K directions of C channels; float64 copies hold the reference's gradients."""
    torch.manual_seed(0)
    k, c, length = 4, 6, 11
    t = [torch.randn(2, k * c, length).to(dtype), torch.rand(2, k * c // each, length).to(dtype), -torch.rand(k * c, n), torch.randn(2, k, n, length).to(dtype),
         torch.randn(2, k, n, length).to(dtype), torch.randn(k * c), torch.rand(k * c // each)]
    t = [v.to(device).requires_grad_() for v in t]
    u, delta, A, B, C, D, bias = twins = refs.doubles(*t)
    want, last = refs.scan(u, delta.repeat_interleave(each, 1), A, B, C, D, None, bias.repeat_interleave(each), True)
    dout = torch.randn_like(want).float()
    want.backward(dout.double())
    return [v.detach() for v in t], twins, want, last, dout.to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("each", [1, 3])
def test_oflex(device, dtype, each):
    """float32 output from bf16, gradients in the inputs' types; one delta for several channels."""
    t, twins, want, last, dout = vmamba(device, dtype, each=each)
    out, x, *rest = selective_scan_cuda_oflex.fwd(*t, True, 1, True)
    assert out.dtype == torch.float32 and not rest and x.shape[-1] == 8
    refs.close(out, want, (1e-4, 1e-4))
    refs.close(x[:, :, -1, 1::2], last, (1e-4, 1e-4))
    du, ddelta, dA, dB, dC, dD, dbias, *rest = selective_scan_cuda_oflex.bwd(*t, dout, x, True, 1)
    tolerance = (1e-3, 1e-3) if dtype is torch.float32 else (2e-2, 5e-2)
    for got, given, twin in zip((du, ddelta, dA, dB, dC, dD, dbias), t, twins):
        assert got.dtype == given.dtype and got.shape == given.shape
        refs.close(got, twin.grad, tolerance)
    assert selective_scan_cuda_oflex.fwd(*t, True, 1, False)[0].dtype == dtype


def test_core(device):
    t, twins, want, last, dout = vmamba(device)
    out, x = selective_scan_cuda_core.fwd(*t, True, 1)
    refs.close(out, want, (1e-4, 1e-4))
    for got, twin in zip(selective_scan_cuda_core.bwd(*t, dout, x, True, 1), twins):
        refs.close(got, twin.grad, (1e-3, 1e-3))
    assert selective_scan_cuda_core.fwd(*t[:5], None, None, False, 1)[0].shape == want.shape


def test_ndstate(device):
    t, twins, want, last, dout = vmamba(device, n=1)
    u, delta, A, B, C, D, bias = t
    flat = (u, delta, A[:, 0], B[:, :, 0], C[:, :, 0], D, bias)
    out, x = selective_scan_cuda_ndstate.fwd(*flat, True, 1)
    refs.close(out, want, (1e-4, 1e-4))
    for got, given, twin in zip(selective_scan_cuda_ndstate.bwd(*flat, dout, x, True, 1), flat, twins):
        refs.close(got, twin.grad.reshape(given.shape), (1e-3, 1e-3))


# ---- the whole of Vim: its model file's imports and calls, against float64 equations
# ---------------------------------------
class VimBlock(torch.nn.Module):
    """Add, norm, mixer; drop_path is the identity at a rate of 0."""

    def __init__(self, d, layer_idx, norm, divides):
        super().__init__()
        self.mixer = Mamba(d, layer_idx=layer_idx, bimamba_type="v2", if_devide_out=divides, init_layer_scale=None, device=None, dtype=None)
        self.norm = norm(d, eps=1e-5, device=None, dtype=None)

    def forward(self, hidden, stream, inference_params=None):
        fused = rms_norm_fn if isinstance(self.norm, RMSNorm) else layer_norm_fn
        hidden, stream = fused(hidden, self.norm.weight, self.norm.bias, residual=stream, prenorm=True, residual_in_fp32=True, eps=self.norm.eps)
        return self.mixer(hidden, inference_params=inference_params), stream

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


class Vim(torch.nn.Module):
    """VisionMamba with its class token in the middle of the patches."""

    def __init__(self, d, depth, n_patches, n_classes, norm, divides):
        super().__init__()
        self.patch_embed = torch.nn.Conv2d(3, d, 4, 4)
        self.cls_token, self.pos_embed = torch.nn.Parameter(torch.randn(1, 1, d)), torch.nn.Parameter(0.1 * torch.randn(1, n_patches + 1, d))
        self.layers = torch.nn.ModuleList(VimBlock(d, i, norm, divides) for i in range(depth))
        self.norm_f, self.head = norm(d, eps=1e-5), torch.nn.Linear(d, n_classes)

    def tokens(self, picture):
        x = self.patch_embed(picture).flatten(2).transpose(1, 2)
        middle = x.shape[1] // 2
        return torch.cat((x[:, :middle], self.cls_token.expand(len(x), -1, -1), x[:, middle:]), dim=1) + self.pos_embed, middle

    def forward(self, picture):
        (hidden, middle), stream = self.tokens(picture), None
        for layer in self.layers:
            hidden, stream = layer(hidden, stream, inference_params=None)
        fused = rms_norm_fn if isinstance(self.norm_f, RMSNorm) else layer_norm_fn
        hidden = fused(hidden, self.norm_f.weight, self.norm_f.bias, eps=self.norm_f.eps, residual=stream, prenorm=False, residual_in_fp32=True)
        return self.head(hidden[:, middle])


def vim_reference(model, picture):
    """The logits in float64, and the twins of the parameters by name."""
    twin, names = copy.deepcopy(model).cpu().double(), {}

    def norm(m, x):
        if isinstance(m, torch.nn.LayerNorm):
            return F.layer_norm(x, x.shape[-1:], m.weight, m.bias, m.eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + m.eps) * m.weight

    stream, middle = twin.tokens(picture.detach().cpu().double())
    for i, layer in enumerate(twin.layers):
        p, mixed = reference(layer.mixer, norm(layer.norm, stream))
        names.update({"layers.%d.mixer.%s" % (i, k): v for k, v in p.items()})
        stream = stream + mixed
    return twin.head(norm(twin.norm_f, stream)[:, middle]), {**dict(twin.named_parameters()), **names}


@pytest.mark.parametrize("norm, divides", [(RMSNorm, True), (torch.nn.LayerNorm, False)], ids=["rms", "layer"])
def test_vim(device, norm, divides):
    """Logits to 1e-5, gradients of every parameter to 1e-4."""
    from mamba_ssm.utils.generation import GenerationMixin  # imported but not called in its model file
    from mamba_ssm.utils.hf import load_config_hf, load_state_dict_hf
    assert GenerationMixin and load_config_hf and load_state_dict_hf
    torch.manual_seed(3)
    model, picture = Vim(32, 2, 9, 5, norm, divides).to(device), torch.randn(2, 3, 12, 12, device=device)
    want, twins = vim_reference(model, picture)
    got, g = model(picture), torch.randn(2, 5)
    assert refs.relative(got, want) < 1e-5
    got.backward(g.to(device))
    want.backward(g.double())
    for name, parameter in model.named_parameters():
        assert refs.relative(parameter.grad, twins[name].grad) < 1e-4, name
    assert len(model.layers[0].allocate_inference_cache(2, 8)) == 2


# ---- SEMamba: along time, then along frequency, both ways each ------------------------------------------------------------
class SEMambaHalf(torch.nn.Module):
    """A block forward and one on the reversed sequence, unfused norms, both residuals added at the end."""

    def __init__(self, d):
        from mamba_ssm.modules.mamba_simple import Block
        super().__init__()
        self.forth, self.back = [Block(d, functools.partial(Mamba, d_state=4, d_conv=4, expand=2, layer_idx=0), norm_cls=functools.partial(RMSNorm, eps=1e-5), fused_add_norm=False,
                                       residual_in_fp32=False) for _ in range(2)]
        self.join = torch.nn.ConvTranspose1d(2 * d, d, 1)

    def forward(self, x):
        """x (B, L, d)."""
        halves = [sum(block(given, None)) for block, given in ((self.forth, x), (self.back, x.flip(1)))]
        return self.join(torch.cat((halves[0], halves[1].flip(1)), -1).transpose(1, 2)).transpose(1, 2) + x


def semamba_reference(half, x):
    """In float64."""
    found = []
    for block, given in ((half.forth, x), (half.back, x.flip(1))):
        normed = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + 1e-5) * block.norm.weight.double()
        m = block.mixer
        p = {k: v.double() for k, v in m.named_parameters()}
        y = refs.mamba_inner(F.linear(normed, p["in_proj.weight"]).transpose(1, 2), p["conv1d.weight"], p["conv1d.bias"], p["x_proj.weight"], p["dt_proj.weight"], None, None,
                             -torch.exp(p["A_log"]), None, None, p["D"], p["dt_proj.bias"])
        found.append(F.linear(y.transpose(1, 2), p["out_proj.weight"]) + given)
    both = torch.cat((found[0], found[1].flip(1)), -1)
    return both @ half.join.weight.double().squeeze(-1) + half.join.bias.double() + x


def test_semamba(device):
    """Maps (B, channels, time, frequency), each half's sequences as the batch; output and every gradient."""
    torch.manual_seed(0)
    halves = torch.nn.ModuleList([SEMambaHalf(8), SEMambaHalf(8)]).to(device)
    x = torch.randn(2, 8, 7, 5, device=device)

    def run(call, x):
        b, c, t, f = x.shape
        x = call(halves[0], x.permute(0, 3, 2, 1).reshape(b * f, t, c)).view(b, f, t, c)
        x = call(halves[1], x.transpose(1, 2).reshape(b * t, f, c)).view(b, t, f, c)
        return x.permute(0, 3, 1, 2)

    out = run(lambda half, rows: half(rows), x)
    out.square().sum().backward()
    found = {n: p.grad.cpu().double() for n, p in halves.named_parameters()}
    halves.cpu().zero_grad()
    want = run(semamba_reference, x.cpu().double())
    want.square().sum().backward()
    assert refs.relative(out, want) < 1e-5
    for name, parameter in halves.named_parameters():
        assert refs.relative(found[name], parameter.grad) < 1e-4, name


# ---- the whole of VideoMamba: recorded outputs and gradients of its weights
# ---------------------------------------------
class VideoMambaBlock(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mixer, self.norm = Mamba(d, bimamba=True), RMSNorm(d, eps=1e-5)

    def forward(self, hidden, stream):
        hidden, stream = rms_norm_fn(hidden, self.norm.weight, self.norm.bias, residual=stream, prenorm=True, residual_in_fp32=True, eps=self.norm.eps)
        return self.mixer(hidden, inference_params=None), stream


class VideoMamba(torch.nn.Module):
    """The equations of src/models/videomamba/MODEL.md on the drop-ins called by the published model, with its parameter
        names."""

    def __init__(self, side, patch, depth, d, frames, last_norm):
        super().__init__()
        self.patch_embed = torch.nn.Module()
        self.patch_embed.proj = torch.nn.Conv3d(3, d, (1, patch, patch), (1, patch, patch))
        self.cls_token, self.last_norm = torch.nn.Parameter(torch.zeros(1, 1, d)), last_norm
        self.pos_embed = torch.nn.Parameter(torch.zeros(1, 1 + (side // patch) ** 2, d))
        self.temporal_pos_embedding = torch.nn.Parameter(torch.zeros(1, frames, d))
        self.layers = torch.nn.ModuleList(VideoMambaBlock(d) for _ in range(depth))
        setattr(self, last_norm, RMSNorm(d, eps=1e-5))

    def forward(self, film):
        patches = self.patch_embed.proj(film).flatten(3).permute(0, 2, 3, 1) + self.pos_embed[:, None, 1:] + self.temporal_pos_embedding[:, :, None]
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(film), -1, -1)
        hidden, stream = torch.cat((first, patches.flatten(1, 2)), dim=1), None
        for layer in self.layers:
            hidden, stream = layer(hidden, stream)
        norm = getattr(self, self.last_norm)
        return rms_norm_fn(hidden, norm.weight, norm.bias, residual=stream, prenorm=False, residual_in_fp32=True, eps=norm.eps)


@pytest.mark.parametrize("path", [path for path in refs.golden_files("videomamba") if "vim" not in str(path).rsplit("/", 1)[-1]])
def test_videomamba(device, path):
    """Outputs to 1e-5, recorded gradients of parameters and of the video to 1e-4."""
    metadata, golden = refs.read_safetensors(path)
    _, weights = refs.read_safetensors(str(path).replace(".golden.", ".weights."))
    config, is_classes = json.loads(metadata["config"]), "head.weight" in weights
    model = VideoMamba(config["img_size"], config["patch_size"], config["depth"], config["embed_dim"], config["num_frames"], "norm_f" if is_classes else "norm").to(device)
    if is_classes:
        model.head = torch.nn.Linear(config["embed_dim"], config["num_classes"]).to(device)
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("clip_decoder.")})
    film = golden["golden.input"].to(device).requires_grad_()
    out = model(film)
    name = "logits" if is_classes else "x_vis"
    out = model.head(out[:, 0]) if is_classes else out
    assert refs.relative(out, golden["golden." + name]) < 1e-5, refs.relative(out, golden["golden." + name])
    (out * golden["golden.loss_w_" + name].to(device)).sum().backward()
    assert refs.relative(film.grad, golden["golden.grad_input"]) < 1e-4
    for key, parameter in model.named_parameters():  # zero if classes see only the first token: the last layer's forward decay
        if "golden.grad." + key not in golden:
            continue
        want = golden["golden.grad." + key].double()
        assert float((parameter.grad.cpu().double() - want).norm()) <= 1e-4 * float(want.norm()), key
