"""Makes tests/golden/qwen2: a tiny Qwen2 with random bfloat16 weights, and transformers' float64 results: logits of a
prompt, the greedy continuation and its logits. Needs torch, transformers, safetensors. Usage: python3 make.py"""
import pathlib

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

here = pathlib.Path(__file__).parent
torch.manual_seed(5)
config = Qwen2Config(vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rope_theta=1e6,
                     tie_word_embeddings=True)
model = Qwen2ForCausalLM(config).eval()
with torch.no_grad():
    for name, p in model.named_parameters():
        p.copy_((torch.randn_like(p) * 0.2 + 1 if "norm" in name else torch.randn_like(p) * 0.25).bfloat16())
model.bfloat16().save_pretrained(here)
(here / "generation_config.json").unlink(missing_ok=True)
model = model.double()
rotary = model.model.rotary_emb
rotary.inv_freq = 1e6 ** -(torch.arange(0, 8, 2).double() / 8)
ids = torch.randint(0, 80, (1, 24))
golden = {"golden.input_ids": ids[0].int()}
with torch.no_grad():
    golden["golden.logits"] = model(ids).logits[0].float()
    tokens, steps = ids, []
    for _ in range(16):
        last = model(tokens).logits[0, -1]
        top = last.topk(2).values
        assert top[0] - top[1] > 1e-3, "a near tie: use another seed"
        steps.append(last.float())
        tokens = torch.cat([tokens, last.argmax().view(1, 1)], 1)
golden["golden.greedy"] = tokens[0, 24:].int()
golden["golden.greedy_logits"] = torch.stack(steps)
save_file(golden, here / "golden.safetensors")
