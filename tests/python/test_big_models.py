"""What loaders and trainers of large models do to blocks: empty weights, offloading to disk, packed batches, DDP and FSDP2."""

import os
import subprocess
import sys

import pytest
import torch

import refs
import transformers_models
from mamba_ssm import Mamba, Mamba2
from mamba_ssm.modules.mamba2_simple import Mamba2Simple

BLOCKS = {"Mamba": lambda: Mamba(16), "v1": lambda: Mamba(16, bimamba_type="v1"), "v3": lambda: Mamba(16, bimamba_type="v3", nslices=2),
          "Mamba2": lambda: Mamba2(16, d_state=4, headdim=8), "Mamba2Simple": lambda: Mamba2Simple(16, d_state=4, headdim=8, learnable_init_states=True)}


@pytest.mark.parametrize("name", list(BLOCKS))
def test_empty_weights(name):
    """On the meta device, then filled with a real block's: equal outputs, and the same parameters kept from decay."""
    accelerate = pytest.importorskip("accelerate")
    real = BLOCKS[name]()
    with accelerate.init_empty_weights():
        empty = BLOCKS[name]()
    assert all(p.is_meta for p in empty.parameters())
    kept = [[n for n, p in m.named_parameters() if getattr(p, "_no_weight_decay", False)] for m in (real, empty)]
    assert kept[0] == kept[1] and {"A_log", "D"} <= set(kept[0])
    empty.load_state_dict(real.state_dict(), assign=True)
    x = torch.randn(2, 8, 16)
    assert torch.equal(empty(x), real(x))


def test_offloaded_blocks(tmp_path):
    """accelerate keeps each layer's weights on disk and loads them only for calls of that layer."""
    accelerate = pytest.importorskip("accelerate")
    m = torch.nn.Sequential(Mamba(16), Mamba2(16, d_state=4, headdim=8), Mamba(16, bimamba=True)).eval()
    x = torch.randn(2, 8, 16)
    with torch.no_grad():
        want = m(x)
        accelerate.disk_offload(m, str(tmp_path), execution_device="cpu")
        assert all(p.is_meta for p in m.parameters())
        refs.close(m(x), want, (1e-5, 1e-5))


@pytest.mark.parametrize("name", ["mamba", "bamba"])
def test_device_map(tmp_path, name):
    transformers = pytest.importorskip("transformers", minversion="5.15")
    pytest.importorskip("accelerate")
    transformers.logging.set_verbosity_error()
    m, ids = transformers_models.build(name).eval(), torch.randint(1, 60, (1, 9))
    want = m(ids).logits
    m.save_pretrained(tmp_path / "saved")
    for places in ("cpu", {"": "disk"}):
        again = type(m).from_pretrained(tmp_path / "saved", device_map=places, offload_folder=str(tmp_path / "offloaded"))
        refs.close(again(ids).logits, want, (1e-6, 1e-6))


@pytest.mark.parametrize("name", ["bamba", "granite"])
def test_packed_batches_of_transformers(name):
    """Sequences packed with seq_idx give what they give alone."""
    transformers = pytest.importorskip("transformers", minversion="5.15")
    import krait.transformers  # noqa: F401
    config, model, arguments = transformers_models.MODELS[name]
    torch.manual_seed(0)
    m = getattr(transformers, model)._from_config(getattr(transformers, config)(**arguments), attn_implementation="flash_attention_2").eval()
    ids, ends = torch.randint(1, 60, (1, 21)), torch.tensor([0, 8, 21], dtype=torch.int32)
    packed = dict(position_ids=torch.cat((torch.arange(8), torch.arange(13)))[None], seq_idx=torch.tensor([[0] * 8 + [1] * 13], dtype=torch.int32),
                  cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=13, max_length_k=13)
    with torch.no_grad():
        got = m(ids, use_cache=False, **packed).logits
        want = torch.cat([m(part, use_cache=False).logits for part in (ids[:, :8], ids[:, 8:])], 1)
    refs.close(got, want, (1e-5, 1e-5))


_WORKER = """
import sys, torch, torch.distributed as dist
from mamba_ssm import Mamba, Mamba2, Mamba3
from torch.distributed.fsdp import fully_shard
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.set_num_threads(1)
mesh = dist.init_device_mesh("cpu", (2,))
for kind in ("DDP", "FSDP2", "FSDP2, each out_proj"):
    torch.manual_seed(0)
    m = torch.nn.Sequential(Mamba(16), Mamba2(16, d_state=4, headdim=8), Mamba3(16, d_state=8, headdim=8), Mamba3(16, d_state=8, headdim=8, is_mimo=True, mimo_rank=2))
    x, names = torch.randn(4, 6, 16), [n for n, _ in m.named_parameters()]
    want = torch.autograd.grad(m(x).square().mean(), list(m.parameters()))
    if kind == "DDP":
        m = torch.nn.parallel.DistributedDataParallel(m)
    else:
        for block in m:
            if kind != "FSDP2":
                fully_shard(block.out_proj, mesh=mesh)
            fully_shard(block, mesh=mesh)
        fully_shard(m, mesh=mesh)
    m(x[2 * rank:2 * rank + 2]).square().mean().backward()
    for name, p, w in zip(names, m.parameters(), want):
        g = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        assert torch.allclose(g, w, rtol=1e-4, atol=1e-6), (kind, name)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(torch, "distributed") or not torch.distributed.is_available() or torch.__version__ < "2.6", reason="needs torch.distributed with fully_shard")
def test_two_processes(tmp_path):
    """DDP and FSDP2: the gradients of a batch split over two processes are those of the whole."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), str(tmp_path / "store")], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = [worker.communicate(timeout=240)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
