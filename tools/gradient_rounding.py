"""How far float32 can be from the recorded training gradients and losses (golden/primeknet_train: float64 arithmetic):
the same computation in PyTorch, in float64, with every operator's results rounded to float32 and no other error.

    python tools/gradient_rounding.py GOLDEN [--seeds 4] [--names mamba,gru,lstm]

`decisions held`: the branch at every kink (PReLU, |angle| and its wrapping, max pooling) is float64's.
`weak bins exact`: so is the phase decoder's output (two numbers) in the bins where its norm is smallest."""
import argparse
import contextlib
import importlib.util
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

spec = importlib.util.spec_from_file_location("primeknet_twin", pathlib.Path(__file__).resolve().parent / "primeknet_twin.py")
twin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(twin)
NORMS = (0, 3, 6, 9, 14, 17)
VIEWS = ("view", "reshape", "permute", "transpose", "t.", "slice", "select", "expand", "detach", "split", "chunk", "clone", "copy", "unsqueeze",
         "squeeze", "alias", "as_strided", "cat", "stack", "pad", "zeros", "ones", "empty", "unfold")


class Rounded(TorchDispatchMode):
    """Rounds every operator's float64 results to float32: float32 with otherwise exact operators. `seed` None rounds to
    nearest; else stochastic rounding, which doubles the squared error."""

    def __init__(self, seed=None):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed) if seed else None

    def round(self, x):
        if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float64, torch.complex128) or x.numel() == 0:
            return x
        if x.dtype == torch.complex128:
            return torch.view_as_complex(self.round(torch.view_as_real(x)).contiguous())
        near = x.float()
        if self.generator is None:
            return near.double()
        off = x - near.double()
        other = torch.nextafter(near, torch.where(off > 0, math.inf, -math.inf).float()).double()
        share = (off / (other - near.double())).nan_to_num(0)
        return torch.where(torch.rand(x.shape, generator=self.generator, dtype=torch.float64) < share, other, near.double())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if name.split(".")[1].endswith("_"):
            return args[0].copy_(self.round(args[0])) if args[0].dtype == torch.float64 else out
        if any("aten." + v in name for v in VIEWS):
            return out
        return tree_map(self.round, out)


class Decisions:
    """Records each value's branch, or replays the record."""

    def __init__(self):
        self.made, self.at, self.held, self.flipped = [], None, False, 0

    def start(self, held):
        self.at, self.held, self.flipped = (0 if self.made else None), held, 0

    def of(self, fresh):
        if self.at is None:
            self.made.append(fresh)
            return fresh
        old = self.made[self.at]
        self.at += 1
        self.flipped += int((old != fresh).sum())
        return old if self.held else fresh


class HeldPReLU(torch.nn.Module):
    def __init__(self, of, decisions):
        super().__init__()
        self.weight, self.decisions = of.weight, decisions

    def forward(self, x):
        shape = [1, -1] + [1] * (x.dim() - 2)
        return x * torch.where(self.decisions.of(x.detach() > 0), 1.0, self.weight.view(shape))


class HeldPhase(torch.nn.Module):
    """The phase decoder, with float64's output in the `n_weak` bins of smallest norm."""

    def __init__(self, of):
        super().__init__()
        for name, child in of.named_children():
            setattr(self, name, child)
        self.exact, self.n_weak, self.shortest, self.median = None, 0, 0.0, 0.0

    def forward(self, x):
        u = self.phase_conv(self.dense_block(x))
        pair = torch.stack((self.phase_conv_i(u), self.phase_conv_r(u)))
        if self.exact is None:
            self.exact = pair.detach().clone()
            length = self.exact.square().sum(0).sqrt()
            self.shortest, self.median = float(length.min()), float(length.median())
        elif self.n_weak:
            length = self.exact.square().sum(0)
            weak = length <= length.flatten().kthvalue(self.n_weak)[0]
            pair = torch.where(weak, pair + (self.exact - pair).detach(), pair)
        return torch.atan2(pair[0], pair[1])


def hold(net, decisions):
    for name, child in net.named_children():
        if isinstance(child, torch.nn.PReLU):
            setattr(net, name, HeldPReLU(child, decisions))
        else:
            hold(child, decisions)


def discriminator(w, u, reference, judged, decisions, keep=None):
    """The score; u advances by one power iteration."""
    def normed(k):
        weight = w["layers.%d.weight_orig" % k]
        flat = weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(flat.t() @ u[k], dim=0, eps=1e-12)
            u[k] = F.normalize(flat @ v, dim=0, eps=1e-12)
        return weight / (u[k] @ (flat @ v))

    def prelu(x, k):
        return x * torch.where(decisions.of(x.detach() > 0), 1.0, w["layers.%d.weight" % k].view([1, -1] + [1] * (x.dim() - 2)))

    x = torch.stack((reference, judged), 1)
    for k in NORMS[:4]:
        x = F.conv2d(x, normed(k), stride=2, padding=1)
        x = prelu(F.instance_norm(x, weight=w["layers.%d.weight" % (k + 1)], bias=w["layers.%d.bias" % (k + 1)]), k + 2)
    x = x.flatten(2)
    x = x.gather(2, decisions.of(x.detach().argmax(2, keepdim=True)))[..., 0]
    x = F.linear(x, normed(14), w["layers.14.bias"])
    x = prelu(x if keep is None else x * keep / 0.7, 16)
    x = F.linear(x, normed(17), w["layers.17.bias"])
    return torch.sigmoid(w["layers.18.slope"] * x)[:, 0]


def angle(v, decisions):
    turns = decisions.of(torch.round(v.detach() / (2 * math.pi)))
    v = v - 2 * math.pi * turns
    return (v * torch.where(decisions.of(v.detach() > 0), 1.0, -1.0)).mean()


def phase_parts(pha, pha_hat, decisions):
    d = pha - pha_hat
    return {"phase_ip": angle(d, decisions), "phase_gd": angle(d.diff(dim=1), decisions), "phase_iaf": angle(d.diff(dim=2), decisions)}


def polar(wav):
    s = twin.spectrum(wav)
    mag = (s.real.square() + s.imag.square() + 1e-9).sqrt() ** 0.3
    return mag, torch.atan2(s.imag + 1e-10, s.real + 1e-5)


BY = {"magnitude": .9, "phase_ip": .3, "phase_gd": .3, "phase_iaf": .3, "complex": .1, "consistency": .05, "metric": .05}


class Case:
    def __init__(self, folder, name):
        read = lambda n: twin.load_safetensors(str(folder / n))
        self.name, self.folder = name, folder
        self.golden, meta = read(name + ".loss.golden.safetensors")
        self.steps, meta_steps = read(name + ".steps.golden.safetensors")
        self.speech, self.disc = read("speech.safetensors")[0], read("disc.weights.safetensors")[0]
        self.decisions = Decisions()
        self.zero, self.rows, self.step_rows = json.loads(meta["zero_gradient_keys"]), json.loads(meta["batch"]), json.loads(meta_steps["batch"])
        self.open(torch.float64)

    def open(self, dtype):
        self.dtype = dtype
        self.net, _ = twin.load_model(str(self.folder / (self.name + ".weights.safetensors")))
        exact = self.phase.exact if hasattr(self, "phase") else None
        self.net.phase_decoder = self.phase = HeldPhase(self.net.phase_decoder)
        self.phase.exact = exact
        hold(self.net, self.decisions)
        self.net.to(dtype)
        self.w = {k: v.to(dtype) for k, v in self.disc.items()}
        self.u = {k: self.w["layers.%d.weight_u" % k].clone() for k in NORMS}

    def clean(self, rows):
        return tuple(x.to(self.dtype) for x in polar(self.speech["golden.clean_i16"][rows].double() / 32768))

    def forward(self, rows, mag, pha):
        """The clean spectrum, the model's output, and the output's projection onto consistent spectra."""
        mag_hat, pha_hat, com_hat = self.net(self.speech["golden.input_com"][rows].to(self.dtype))
        return mag, pha, mag_hat, pha_hat, com_hat, *polar(twin.istft(mag_hat, pha_hat))

    def terms(self, mag, pha, mag_hat, pha_hat, com_hat, mag_con, pha_con, score):
        com = torch.stack((mag * pha.cos(), mag * pha.sin()), -1)
        com_con = torch.stack((mag_con * pha_con.cos(), mag_con * pha_con.sin()), -1)
        return {"magnitude": F.mse_loss(mag, mag_hat), **phase_parts(pha, pha_hat, self.decisions), "complex": 2 * F.mse_loss(com, com_hat),
                "consistency": 2 * F.mse_loss(com_hat, com_con), "metric": (score - 1).square().mean()}

    def gradients(self, held=False, n_weak=0, mode=contextlib.nullcontext()):
        """By name: d total / d weight."""
        d = self.decisions
        d.start(held)
        self.phase.n_weak = n_weak
        self.net.zero_grad(set_to_none=True)
        u = {k: v.clone() for k, v in self.u.items()}
        clean = self.clean(self.rows)
        with mode:
            made = self.forward(self.rows, *clean)
            with torch.no_grad():  # the discriminator's own calls come first: its vectors advance two steps
                discriminator(self.w, u, made[0], made[0], d), discriminator(self.w, u, made[0], made[5], d)
            terms = self.terms(*made, discriminator(self.w, u, made[0], made[5], d))
            sum(BY[k] * v for k, v in terms.items()).backward()
        return {k: p.grad.detach().double().clone() for k, p in self.net.named_parameters() if p.grad is not None}

    def five_steps(self, mode=contextlib.nullcontext()):
        """The worst relative difference of any loss term of five updates from the record, and its name."""
        golden, worst = self.steps, (0.0, "")
        how = dict(lr=5e-4, betas=(0.8, 0.99), eps=1e-8, weight_decay=0.01, foreach=False)
        leaves = [k for k in self.w if not k.endswith(("_u", "_v"))]
        for k in leaves:
            self.w[k] = self.w[k].clone().requires_grad_(True)
        g, c = torch.optim.AdamW(self.net.parameters(), **how), torch.optim.AdamW([self.w[k] for k in leaves], **how)
        for step, rows in enumerate(self.step_rows):
            d = self.decisions
            d.made.clear()
            keep = golden["golden.dropout_keep"][step].to(self.dtype) if "golden.dropout_keep" in golden else [None] * 3
            quality = golden["golden.pesq_target"][step].to(self.dtype)
            g.zero_grad(), c.zero_grad()
            clean = self.clean(rows)
            with mode:
                made = self.forward(rows, *clean)
                mag, con = made[0], made[5]
                real = (discriminator(self.w, self.u, mag, mag, d, keep[0]) - 1).square().mean()
                guess = (discriminator(self.w, self.u, mag, con.detach(), d, keep[1]) - quality).square().mean()
                (real + guess if quality.isfinite().all() else real).backward()
                c.step()
                terms = self.terms(*made, discriminator(self.w, self.u, mag, con, d, keep[2]))
                sum(BY[k] * v for k, v in terms.items()).backward()
                g.step()
            for k, v in {**terms, "disc_r": real, "disc_g": guess}.items():
                want = float(golden["golden.steps." + k][step])
                if math.isfinite(want) and want != 0:
                    worst = max(worst, (abs(float(v.detach()) - want) / abs(want), "%s of step %d" % (k, step)))
        return worst

    def compare(self, got, want):
        """Relative L2 of the worst tensor and of all together, and the worst tensor's name."""
        worst, name, num, den = 0.0, "", 0.0, 0.0
        for k, w in want.items():
            if k in self.zero or k not in got:
                continue
            off, size = float((got[k] - w).square().sum()), float(w.square().sum())
            num, den = num + off, den + size
            if size and math.sqrt(off / size) > worst:
                worst, name = math.sqrt(off / size), k
        return worst, math.sqrt(num / den), name


def run(case, seeds):
    say = lambda what, text: print("%-5s %-48s %s" % (case.name, what, text), flush=True)
    want = {k[12:]: v.double() for k, v in case.golden.items() if k.startswith("golden.grad.")}
    exact = case.gradients()
    say("float64 against the recorded", "worst tensor %.1e, all %.1e (%s)" % case.compare(exact, want))
    say("phase decoder's answer", "shortest %.1e, median %.1e" % (case.phase.shortest, case.phase.median))
    draws = [None] + list(range(1, seeds + 1))

    def distances(what, draw):
        rows = [case.compare(draw(s), exact) + (case.decisions.flipped,) for s in draws]
        say(what, "worst tensor %s; all %s; decisions changed %s; %s" % (
            " ".join("%.1e" % r[0] for r in rows), " ".join("%.1e" % r[1] for r in rows), " ".join(str(r[3]) for r in rows), rows[-1][2]))

    distances("rounded, to nearest and at random", lambda s: case.gradients(mode=Rounded(s)))
    distances("rounded, decisions held", lambda s: case.gradients(True, mode=Rounded(s)))
    for n in (1, 10):
        distances("rounded, decisions held, %d weak bins exact" % n, lambda s: case.gradients(True, n, mode=Rounded(s)))
    case.open(torch.float32)
    draws = [1, 2]
    distances("PyTorch in float32, one and two threads", lambda s: (torch.set_num_threads(s), case.gradients())[1])
    torch.set_num_threads(1)
    worst = []
    for mode, dtype in [(contextlib.nullcontext(), torch.float64)] + [(Rounded(s), torch.float64) for s in [None] + list(range(1, seeds + 1))] + [(contextlib.nullcontext(), torch.float32)]:
        case.decisions = Decisions()
        case.open(dtype)
        worst.append(case.five_steps(mode))
    say("losses of five steps", "; ".join("%.1e %s" % w for w in worst) + " (float64, rounded to nearest, at random, PyTorch in float32)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("golden")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--names", default="mamba,gru,lstm")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names.split(","):
        run(Case(pathlib.Path(args.golden), name), args.seeds)


if __name__ == "__main__":
    sys.exit(main())
