"""Linear layers, attention, MLPs, embeddings and models over two gloo processes beside the same weights in one."""

import os
import subprocess
import sys

import pytest
import torch

_WORKER = """
import sys, torch, torch.distributed as dist
import torch.nn.functional as F
from flash_attn.models.gpt import GPTLMHeadModel, combine_state_dicts_tp, shard_state_dict_tp
from flash_attn.utils.distributed import all_gather_raw, allreduce_sequence_parallel_grad
from transformers import GPT2Config
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.set_num_threads(1)
group = dist.group.WORLD
rotary = dict(rotary_emb_fraction=1.0, n_positions=0)
models = {
    "MLP": dict(n_embd=64, n_head=4, sequence_parallel=True),
    "gated MLP, groups of keys": dict(n_embd=64, n_head=4, n_head_kv=2, sequence_parallel=False, activation_function="swiglu", rms_norm=True, use_flash_attn=True,
                                      qkv_proj_bias=False, tie_word_embeddings=False, **rotary),
    "fused MLP, parallel block, 2 and 1 heads": dict(n_embd=96, n_head=3, sequence_parallel=True, parallel_block=True, fused_mlp=True, use_flash_attn=True,
                                                     activation_function="gelu_new", **rotary),
    "ALiBi, fused sums": dict(n_embd=64, n_head=4, sequence_parallel=False, use_flash_attn=True, use_alibi=True, fused_dropout_add_ln=True, parallel_block=True,
                              parallel_block_tied_norm=True, n_positions=0)}


def near(found, expected, what):
    assert found.shape == expected.shape and (found - expected).abs().max() <= 3e-5 * expected.abs().max() + 1e-7, (what, (found - expected).abs().max(), expected.abs().max())


for name, options in models.items():
    options = dict(dict(vocab_size=90, pad_vocab_size_multiple=12, n_positions=40, n_layer=2, initializer_range=0.2, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0), **options)
    torch.manual_seed(0)
    config = GPT2Config(**options)
    whole = GPTLMHeadModel(config)
    part = GPTLMHeadModel(config, process_group=group)
    state = whole.state_dict()
    mine = shard_state_dict_tp(dict(state), config, 2, rank)
    part.load_state_dict(mine)
    shards = [shard_state_dict_tp(dict(state), config, 2, r) for r in range(2)]
    again = combine_state_dicts_tp(shards, config)
    assert set(again) == set(state) and all(torch.equal(again[key], state[key]) for key in state), name
    torch.manual_seed(1)  # the first process drew biases that the second has not
    ids, weights = torch.randint(0, 90, (2, 8)), torch.randn(2, 8, 96)
    columns = slice(48 * rank, 48 * rank + 48)
    want, found = whole(ids).logits, part(ids).logits
    expected = want[..., columns]
    near(found, expected.flatten(0, 1) if config.sequence_parallel else expected, name)
    (want * weights).sum().backward()
    (found * (weights[..., columns].flatten(0, 1) if config.sequence_parallel else weights[..., columns])).sum().backward()
    allreduce_sequence_parallel_grad(part, group)
    grads = shard_state_dict_tp({key: p.grad for key, p in whole.named_parameters()}, config, 2, rank)
    assert set(grads) == {key for key, _ in part.named_parameters()}, name
    for key, p in part.named_parameters():
        near(p.grad, grads[key], (name, key))
    if not config.sequence_parallel:
        for cg in (False, True):
            assert torch.equal(part.generate(ids, 12, vocab_size=90, tensor_parallel=2, cg=cg), whole.generate(ids, 12, vocab_size=90, cg=cg)), (name, cg)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available() or torch.__version__ < "2.1", reason="needs torch.distributed")
def test_two_processes(tmp_path):
    """Logits, every gradient and generated tokens of models whose layers are split over two processes."""
    pytest.importorskip("transformers")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), GLOO_SOCKET_IFNAME="lo")
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), str(tmp_path / "store")], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = [worker.communicate(timeout=280)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said


def test_captured_steps():
    """update_graph_cache and capture_graph, by upstream's names of arguments; on a CPU a step is a call."""
    transformers = pytest.importorskip("transformers")
    from flash_attn.models.gpt import GPTLMHeadModel
    from flash_attn.utils.generation import capture_graph, update_graph_cache
    config = transformers.GPT2Config(vocab_size=90, n_positions=0, n_embd=64, n_layer=2, n_head=4, use_flash_attn=True, rotary_emb_fraction=1.0, initializer_range=0.2)
    model, ids = GPTLMHeadModel(config).eval(), torch.randint(90, (2, 9))
    whole = model(ids).logits
    cache = update_graph_cache(model, None, batch_size=2, seqlen_og=5, max_seqlen=16, decoding_seqlens=(1, 3), tensor_parallel=1, dtype=None, n_warmups=1)
    assert set(cache.callables) == {(2, 1), (2, 3)} and cache.inference_params.seqlen_offset == 0
    with torch.inference_mode():
        cache.inference_params.reset(16, 2)
        model(ids[:, :5], inference_params=cache.inference_params)
        run = capture_graph(model, cache.inference_params, batch_size=2, max_seqlen=16, decoding_seqlen=3, mempool=cache.mempool, n_warmups=1)
        for step in (cache.run, run):
            found = step(ids[:, 5:8], torch.arange(5, 8).expand(2, -1), 5)
            assert (found - whole[:, 5:8]).abs().max() < 2e-5 * whole.abs().max()
        assert (cache.run(ids[:, 8:], torch.full((2, 1), 8), 8) - whole[:, 8:]).abs().max() < 2e-5 * whole.abs().max()
    assert update_graph_cache(model, cache, 2, 5, 12).inference_params is cache.inference_params
    kept = cache.inference_params
    assert update_graph_cache(model, cache, 2, 5, 32).inference_params is not kept and set(cache.callables) == {(2, 1)}
