"""transformers' Mamba models give the same results with and without the drop-ins: logits, gradients, tokens."""

import functools
import inspect
import os
import subprocess
import sys
import tempfile

import pytest
import torch

import refs
import transformers_models

_HERE = os.path.dirname(os.path.abspath(__file__))


def _needs():
    """Why these tests cannot run here, or None. Releases before 5.15 use the drop-ins only on a GPU."""
    try:
        import transformers
    except ImportError:
        return "transformers is not installed"
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    return None if release >= (5, 15) else "transformers %s requires CUDA" % transformers.__version__


def _release():
    import transformers
    return transformers.__version__


def _norms_by_groups():
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
    return "group_size" in inspect.signature(MambaRMSNormGated.__init__).parameters


pytestmark = pytest.mark.skipif(bool(_needs()), reason=str(_needs()))


def _start(path, switch, device):
    """One process without the drop-ins, one with."""
    dropins = [p for p in sys.path if p and os.path.isfile(os.path.join(p, "mamba_ssm", "__init__.py"))]
    paths = [p for p in sys.path if p and (switch or p not in dropins)]
    code = "import sys, runpy; sys.path[:] = %r; sys.argv = [%r, %r, '--device', %r]; import torch; torch.set_num_threads(1); runpy.run_path(sys.argv[0], run_name='__main__')"
    program = os.path.join(_HERE, "transformers_models.py")
    return subprocess.Popen([sys.executable, "-I", "-c", code % (paths, program, path, device)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@functools.cache
def _results(device):
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("off.pt", "on.pt")]
        processes = [_start(path, switch, device) for path, switch in zip(paths, (False, True))]
        for process in processes:
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
        return [torch.load(path)["results"] for path in paths]


@pytest.mark.parametrize("name", list(transformers_models.MODELS))
def test_same_results_with_and_without_dropins(name, device):
    if os.environ.get("KRAIT_INSTALLED") and any("site-packages" in p and os.path.isdir(os.path.join(p, "mamba_ssm")) and os.path.isdir(os.path.join(p, "transformers"))
                                                 for p in sys.path):
        pytest.skip("the drop-ins share a folder with transformers and cannot be excluded")
    off, on = [results[name] for results in _results(device)]
    if isinstance(off, str):
        pytest.skip("transformers without the drop-ins: " + off)
    assert not isinstance(on, str), on
    assert off.keys() == on.keys() and torch.equal(off["tokens"], on["tokens"])
    assert refs.relative(on["logits"], off["logits"]) < 1e-5
    if name == "falcon_mamba":  # its training fast path is mamba_inner_fn, which norms delta after dt_proj; otherwise the norm comes before
        assert refs.relative(on["training logits"], off["training logits"]) > 1e-3
        return
    if name in ("mamba2", "bamba", "granite") and not _norms_by_groups():
        pytest.skip("transformers %s has grouped norms only in its fast path" % _release())
    assert refs.relative(on["training logits"], off["training logits"]) < 1e-5
    for key, want in off.items():
        if key.startswith("gradient"):
            assert (on[key] - want).norm() <= 1e-4 * want.norm() + 1e-7, key


def test_gated_delta_rule_is_used(monkeypatch):
    """Qwen3-Next and Kimi Linear with fla's functions: transformers resolves them when it is imported."""
    pytest.importorskip("transformers.models.kimi_linear")
    from fla.ops import _delta
    for name in ("qwen3_next", "kimi_linear"):
        calls, real = [], _delta.gated_delta_rule
        monkeypatch.setattr(_delta, "gated_delta_rule", lambda *args, **options: calls.append(1) or real(*args, **options))
        transformers_models.build(name)(torch.randint(1, 60, (1, 9)))
        monkeypatch.undo()
        assert calls == [1], name


def test_fast_path_is_used():
    """The comparison is only meaningful if transformers uses the drop-ins."""
    from transformers.models.mamba2 import modeling_mamba2
    from mamba_ssm.ops.triton import ssd_combined
    calls, real = [], ssd_combined.mamba2_block
    ssd_combined.mamba2_block = lambda *args: calls.append(1) or real(*args)
    try:
        model = transformers_models.build("mamba2").train()
        model(torch.randint(1, 60, (1, 9)), use_cache=False)
    finally:
        ssd_combined.mamba2_block = real
    assert len(calls) == 2 and modeling_mamba2.__name__


@pytest.mark.parametrize("model", list(transformers_models.ATTENTION))
def test_flash_attention(model, device):
    """Padded batches, generation with a cache, gradients: like transformers' eager attention."""
    import krait.transformers  # noqa: F401
    import transformers
    if device == "cuda" and not transformers.utils.is_flash_attn_2_available():
        pytest.skip("flash_attn is not installed as a distribution (python -m krait dropin on flash_attn)")
    eager, flash = [transformers_models.build_attention(model, name) for name in ("eager", "flash_attention_2")]
    assert eager.config._attn_implementation == "eager" and flash.config._attn_implementation == "flash_attention_2"
    flash.load_state_dict(eager.state_dict())
    eager, flash = eager.to(device), flash.to(device)
    ids = torch.randint(3, 200, (3, 21)).to(device)
    mask = torch.ones_like(ids)
    mask[0, :6] = mask[2, :1] = 0
    there = mask.bool()
    logits = [m(input_ids=ids, attention_mask=mask).logits[there] for m in (eager, flash)]
    assert refs.relative(logits[1], logits[0]) < 1e-5
    for out in logits:
        out.square().mean().backward()
    for (name, p), q in zip(eager.named_parameters(), flash.parameters()):
        assert p.grad is None or refs.relative(q.grad, p.grad) < 1e-4 or p.grad.norm() < 1e-7, name
    tokens = [m.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0) for m in (eager, flash)]
    assert torch.equal(*tokens)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_flash_attn_that_transformers_takes_shortens_its_way(has_gpu):
    """Where it does so by itself: on a GPU, whose presence is pretended here."""
    code = ("import sys, torch; torch.cuda.is_available = lambda: %s; import transformers.modeling_utils as t; from flash_attn import flash_attn_func; "
            "print(t.ALL_ATTENTION_FUNCTIONS['flash_attention_2'].__module__)" % has_gpu)
    found = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True)
    assert found.stdout.split()[-1:] == ["krait.transformers" if has_gpu else "transformers.integrations.flash_attention"], found.stderr


def test_plain_attention_goes_straight_to_krait(monkeypatch):
    """Without what transformers does around each call, to the same bits; padding, packed sequences, windows and float32 go its way."""
    import krait.transformers as ours
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert ALL_ATTENTION_FUNCTIONS["flash_attention_2"] is ours._forward
    model, usual, counts = transformers_models.build_attention("llama", "flash_attention_2").bfloat16(), ours._usual, []
    monkeypatch.setattr(ours, "_usual", lambda *args, **kwargs: counts.append(1) or usual(*args, **kwargs))
    n_layers = model.config.num_hidden_layers

    def run(rows=1, length=9, **more):
        counts.clear()
        ids = torch.randint(3, 200, (rows, length), generator=torch.Generator().manual_seed(rows))
        logits = model(input_ids=ids, **more).logits
        logits.float().square().mean().backward()
        found = [logits.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]]
        model.zero_grad()
        return found, len(counts)

    def packed(*lengths):
        return torch.cat([torch.arange(n) for n in lengths])[None]
    for more in (dict(), dict(rows=3), dict(position_ids=packed(9)), dict(position_ids=packed(9) + 4)):
        found, n = run(**more)
        assert n == 0, more
        with monkeypatch.context() as m:
            m.setattr(ours, "_is_plain", lambda *args: False)
            want, n = run(**more)
        assert n == n_layers and all(torch.equal(a, b) for a, b in zip(found, want)), more
    positions = packed(9)
    assert run(position_ids=positions)[1] == 0
    positions.copy_(packed(5, 4))
    assert run(position_ids=positions)[1] == run(rows=2, attention_mask=torch.tensor([[0] * 3 + [1] * 6, [1] * 9]))[1] == n_layers
    with torch.inference_mode():
        assert torch.equal(model(input_ids=torch.arange(3, 12)[None]).logits, model(input_ids=torch.arange(3, 12)[None], position_ids=packed(9)).logits)
    counts.clear()
    model.generate(torch.arange(3, 12)[None], max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert not counts
    model.float()
    assert run()[1] == n_layers
