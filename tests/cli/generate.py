"""krait generate and krait score with a tiny random model: against a plain Python implementation, pieces against one
pass, sampling, states, several prompts, errors. Usage: python3 tests/cli/generate.py KRAIT"""
import fcntl
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from run import KRAIT, check, check_error, finish, krait

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "demo"))
import tiny_language_model as tiny  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="krait-generate-")
here = pathlib.Path(folder.name)
PROMPT = "the rain in the north and"


# ---- a plain implementation ----
def read_tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__")
    return {k: (v["shape"], struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[8 + n:][slice(*v["data_offsets"])])) for k, v in header.items()}


def silu(x):
    return x / (1 + math.exp(-x))


def softplus(x):
    return math.log1p(math.exp(x))


def matvec(w, x):
    (_, k), values = w
    return [sum(a * b for a, b in zip(values[i * k:(i + 1) * k], x)) for i in range(len(values) // k)]


def rms(x, weight=None, eps=1e-5):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v * scale * (weight[i] if weight else 1) for i, v in enumerate(x)]


class Plain:
    """Mamba-1 or FalconMamba, a token at a time."""

    def __init__(self, path, is_falcon):
        self.w, self.is_falcon = read_tensors(path / "model.safetensors"), is_falcon
        self.conv = [[[0.0] * tiny.TAPS for _ in range(2 * tiny.D)] for _ in range(tiny.LAYERS)]
        self.ssm = [[[0.0] * tiny.STATE for _ in range(2 * tiny.D)] for _ in range(tiny.LAYERS)]

    def mix(self, i, x):
        get = lambda name: self.w[f"backbone.layers.{i}.mixer.{name}"]
        inner, rank, N = 2 * tiny.D, tiny.D // 16, tiny.STATE
        xz = matvec(get("in_proj.weight"), x)
        u = []
        for c in range(inner):
            self.conv[i][c] = self.conv[i][c][1:] + [xz[c]]
            taps = get("conv1d.weight")[1][c * tiny.TAPS:(c + 1) * tiny.TAPS]
            u.append(silu(get("conv1d.bias")[1][c] + sum(a * b for a, b in zip(taps, self.conv[i][c]))))
        columns = matvec(get("x_proj.weight"), u)
        dt, B, C = columns[:rank], columns[rank:rank + N], columns[rank + N:]
        if self.is_falcon:
            dt, B, C = rms(dt, eps=1e-6), rms(B, eps=1e-6), rms(C, eps=1e-6)
        delta = matvec(get("dt_proj.weight"), dt)
        y = []
        for c in range(inner):
            step, total = softplus(delta[c] + get("dt_proj.bias")[1][c]), 0.0
            for n in range(N):
                state = self.ssm[i][c]
                state[n] = state[n] * math.exp(-step * math.exp(get("A_log")[1][c * N + n])) + step * B[n] * u[c]
                total += C[n] * state[n]
            y.append((total + get("D")[1][c] * u[c]) * silu(xz[inner + c]))
        return matvec(get("out_proj.weight"), y)

    def step(self, token):
        embedding = self.w["backbone.embeddings.weight"]
        h = list(embedding[1][token * tiny.D:(token + 1) * tiny.D])
        for i in range(tiny.LAYERS):
            h = [a + b for a, b in zip(h, self.mix(i, rms(h, self.w[f"backbone.layers.{i}.norm.weight"][1])))]
        return matvec(embedding, rms(h, self.w["backbone.norm_f.weight"][1]))


def tokens_of(path, text):
    """Bytes, and merges by rank; words are split at spaces, as the pattern does for these texts."""
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    ranks = {tuple(m.split()): i for i, m in enumerate(model["merges"])}
    ids = []
    for word in text.replace(" ", "\n ").split("\n"):
        parts = [c if c != " " else "Ġ" for c in word]
        while True:
            pairs = [(ranks[p], i) for i, p in enumerate(zip(parts, parts[1:])) if p in ranks]
            if not pairs:
                break
            _, i = min(pairs)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        ids += [model["vocab"][p] for p in parts]
    return ids


def against_plain(kind):
    path = here / kind
    tiny.make(path, kind)
    plain, ids, nats = Plain(path, kind == "falcon"), tokens_of(path, PROMPT), 0.0
    logits = None
    for i, token in enumerate(ids):
        if i:
            nats += math.log(sum(math.exp(v) for v in logits)) - logits[token]
        logits = plain.step(token)
    score = json.loads(krait("score", path, "-", "--json", stdin=PROMPT.encode()).stdout)
    check(score["tokens"] == len(ids) - 1 and abs(score["nats_per_token"] - nats / (len(ids) - 1)) < 1e-5, f"{kind}: score {score}, not {nats / (len(ids) - 1)}")
    made = b""
    vocab = {v: k for k, v in json.loads((path / "tokenizer.json").read_text())["model"]["vocab"].items()}
    byte_of = {c: b for b, c in enumerate(json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]) if b < 256}
    for _ in range(12):
        token = max(range(len(logits)), key=lambda i: logits[i])
        if token in vocab:
            made += bytes(byte_of[c] for c in vocab[token])
        logits = plain.step(token)
    done = krait("generate", path, "-p", PROMPT, "-n", 12)
    check(done.returncode == 0 and done.stdout.removesuffix(b"\n").decode() == made.decode(errors="replace").removesuffix("\n"), f"{kind}: {done.stdout!r}, not {made!r}: {done.stderr!r}")
    check(done.stderr.count(b"\n") == 1 and b"time to first token" in done.stderr, f"rates: {done.stderr!r}")


def story(*args, **kw):
    done = krait("generate", *args, "--json", **kw)
    check(done.returncode == 0, f"{args}: {done.stderr!r}")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def same_text_by_other_ways():
    tiny.make(here / "whole"), tiny.make(here / "shards", shards=3), tiny.make(here / "half", dtype="f16"), tiny.make(here / "brain", dtype="bf16"), tiny.make(here / "two", "mamba2")
    whole = story(here / "whole", "-p", PROMPT, "-n", 20)
    check(whole["tokens"] == 20 and whole["stop_reason"] == "length" and whole["prompt"] == PROMPT, f"{whole}")
    check(story(here / "shards", "-p", PROMPT, "-n", 20)["text"] == whole["text"], "shards")
    for part in ("model-00002-of-00003.safetensors", "model.safetensors.index.json", "config.json"):
        check(story(here / "shards" / part, "-p", PROMPT, "-n", 20)["text"] == whole["text"], f"{part} stands for its folder")
    check(story("model-00001-of-00003.safetensors", "-p", PROMPT, "-n", 20, cwd=here / "shards")["text"] == whole["text"], "a shard in this folder")
    check(score_of(here / "shards" / "model-00003-of-00003.safetensors", PROMPT.encode()) == score_of(here / "shards", PROMPT.encode()), "score with a shard")
    done = krait("convert", "--quantize", "q8_0", here / "shards" / "model-00001-of-00003.safetensors", here / "all.safetensors")
    check(done.returncode == 0 and "backbone.layers.1.mixer.in_proj.weight.q8_0" in parts_of(here / "all.safetensors"), f"a shard quantized: {done}")
    check(krait("info", here / "shards" / "model.safetensors.index.json", "--graph").returncode == 0, "info --graph of an index")
    check_error(2, "it is the model's model-00002-of-00003.safetensors", "generate", here / "shards" / "model-00001-of-00003.safetensors", "-p", "a", "--save-state", here / "shards" / "model-00002-of-00003.safetensors", "-f")
    check(story(here / "whole" / "model.safetensors", "-p", PROMPT, "-n", 20)["text"] == whole["text"], "a weights file")
    check(story(here / "whole", "-", "-n", 20, stdin=PROMPT.encode())["text"] == whole["text"], "standard input")
    check(story(here / "whole", "-p", PROMPT, "-n", 20, "--state-dtype", "weights")["text"] == whole["text"], "--state-dtype weights of float32 weights")
    check(story(here / "whole", "-", "-n", 0, stdin=b"a\0b")["prompt"] == "a\0b", "a zero in a text is not its end")
    check(story(here / "whole", "-p", PROMPT, "-n", 20, "--threads", 1)["text"] == whole["text"], "one thread")
    for name in ("half", "brain", "two"):
        check(story(here / name, "-p", PROMPT, "-n", 20)["tokens"] == 20, name)
    two, config = story(here / "two", "-p", PROMPT, "-n", 20)["text"], json.loads((here / "two" / "config.json").read_text())
    (here / "two" / "config.json").write_text(json.dumps({**config, "rms_norm": False}))
    check(story(here / "two", "-p", PROMPT, "-n", 20)["text"] == two, "transformers' Mamba-2 has RMS norms whatever its rms_norm says")
    (here / "two" / "config.json").write_text(json.dumps(config))
    full, score = (json.loads(krait("score", here / n, "-", "--json", stdin=PROMPT.encode()).stdout)["nats_per_token"] for n in ("whole", "half"))
    check(abs(full - score) < 1e-2 * full, f"float16 scores {score}, float32 {full}")
    check(krait("generate", here / "whole", "-p", PROMPT, "-n", 0).stdout == b"\n", "no tokens")
    tiny.make(here / "qwen2", "qwen2"), tiny.make(here / "qwen2-shards", "qwen2", shards=3), tiny.make(here / "qwen2-brain", "qwen2", dtype="bf16")
    want = story(here / "qwen2", "-p", PROMPT, "-n", 20)
    check(want["tokens"] == 20 and story(here / "qwen2-shards", "-p", PROMPT, "-n", 20)["text"] == want["text"], f"qwen2: {want}")
    full, score = (json.loads(krait("score", here / n, "-", "--json", stdin=PROMPT.encode()).stdout)["nats_per_token"] for n in ("qwen2", "qwen2-brain"))
    check(abs(full - score) < 3e-2 * full, f"qwen2: bfloat16 scores {score}, float32 {full}")
    wide, narrow = (story(here / "qwen2-brain", "-p", PROMPT, "-n", 4, "--logprobs", 1, *more)["logprobs"][0]["logprob"] for more in (("--state-dtype", "float32"), ()))
    check(0 < abs(wide - narrow) < 1e-2, f"qwen2: keys of 16 bits move {wide} to {narrow}")
    check(abs(narrow - story(here / "qwen2-brain", "-p", PROMPT, "-n", 4, "--logprobs", 1, "--state-dtype", "weights")["logprobs"][0]["logprob"]) == 0, "keys are narrow by themselves")
    return whole


def states(whole):
    for model, text in ((here / "whole", whole["text"]), *((here / n, story(here / n, "-p", PROMPT, "-n", 20)["text"]) for n in ("two", "qwen2"))):
        file = here / f"{model.name}.state"
        first = story(model, "-p", PROMPT, "-n", 7, "--save-state", file)["text"]
        rest = story(model, "--load-state", file, "-n", 13)["text"]
        # a character may start in one and end in the other
        check((first + rest).replace("�", "") == text.replace("�", "") or "�" in first + rest, f"states: {first!r} + {rest!r}, not {text!r}")
    file = here / "prompt.state"
    krait("generate", here / "whole", "-p", "the rain in the", "-n", 0, "--save-state", file)
    check(story(here / "whole", "--load-state", file, "-p", " north and", "-n", 20)["text"] == whole["text"], "a prompt in two parts")
    check_error(2, "exists", "generate", here / "whole", "-p", "a", "--save-state", file)
    check_error(2, "does not exist", "generate", here / "whole", "-p", "a", "--save-state", here / "no" / "such.state")
    check_error(2, "is a folder", "generate", here / "whole", "-p", "a", "--save-state", here)
    check_error(2, "/dev/stdout", "generate", here / "whole", "-p", "a", "--save-state", "-", cwd=here)
    link = here / "linked.state"
    link.hardlink_to(here / "whole" / "model.safetensors")
    for out, name in ((here / "whole" / "config.json", "config.json"), (link, "model.safetensors")):
        check_error(2, f"it is the model's {name}, which is read", "generate", here / "whole", "-p", "a", "--save-state", out, "-f")
    check_error(2, "it is the model's tokenizer.json", "generate", here / "whole" / "model.safetensors", "-p", "a", "--save-state", here / "whole" / "tokenizer.json", "-f")
    for n, prompt in ((0, ()), (1, ("-p", "a"))):  # only what is read now counts
        done = krait("generate", here / "whole", "--load-state", file, *prompt, "-n", 2)
        check(done.stderr.startswith(b"prompt: %d tokens in " % n), f"{n} tokens behind a state: {done.stderr!r}")
    done = krait("generate", here / "two", "--load-state", file)
    check(done.returncode == 1 and b"belong to another model" in done.stderr and done.stdout == b"", f"{done}")
    done = krait("generate", here / "whole", "--load-state", here / "whole" / "model.safetensors")
    check(done.returncode == 1 and b"was not written by --save-state" in done.stderr, f"{done}")


def sampling(whole):
    bold = ["-p", PROMPT, "-n", 20, "--temperature", 1.5]
    one = story(here / "whole", *bold, "--seed", 5)["text"]
    check(one == story(here / "whole", *bold, "--seed", 5)["text"], "the same seed")
    check(len({story(here / "whole", *bold, "--seed", s)["text"] for s in range(5)}) > 2, "other seeds")
    check(story(here / "whole", *bold, "--top-k", 1)["text"] == whole["text"], "--top-k 1 is the most likely")
    check(story(here / "whole", *bold, "--top-p", 1e-6)["text"] == whole["text"], "--top-p 0.000001 is the most likely")
    check(story(here / "whole", *bold, "--min-p", 1)["text"] == whole["text"], "--min-p 1 is the most likely")
    check(story(here / "whole", "-p", PROMPT, "-n", 20, "--repetition-penalty", 5)["text"] != whole["text"], "--repetition-penalty")


def stops(whole):
    text = whole["text"]
    word = next(c for c in text[3:] if c.isascii())
    cut = story(here / "whole", "-p", PROMPT, "-n", 20, "--stop", word)
    check(cut["stop_reason"] == "stop" and cut["text"] == text[:text.index(word)], f"--stop {word!r}: {cut}")
    streamed = krait("generate", here / "whole", "-p", PROMPT, "-n", 20, "--stop", word).stdout.decode()
    check(streamed.rstrip("\n") == text[:text.index(word)].rstrip("\n"), f"--stop streamed: {streamed!r}")
    check(story(here / "whole", "-p", PROMPT, "-n", 20, "--stop", "no such words")["text"] == text, "a stop that never matches")


def several():
    prompts = ["the north", "", "and a rain", "in", "the rain in the north and"]
    (here / "prompts").write_text("\n".join(prompts))
    for model in (here / "whole", here / "two", here / "qwen2"):
        alone = [story(model, "-p", p, "-n", 15)["text"] if p else "" for p in prompts]
        check(texts_of_lines(model, here / "prompts", "-n", 15) == alone, f"{model.name}: --file: not {alone}")
    done = krait("generate", here / "whole", "--file", here / "prompts", "-n", 15)
    check(done.stdout.count(b"\n") == 5 and done.stdout.split(b"\n")[1] == b"", f"one line each: {done.stdout!r}")
    many = [" ".join(["the rain", "a", "north"][: 1 + i % 3]) + str(i // 3) for i in range(700)] # more than run together
    (here / "many").write_text("\n".join(many) + "\n")
    texts = texts_of_lines(here / "whole", here / "many", "-n", 3)
    check(len(texts) == 700 and all(texts[i] == story(here / "whole", "-p", many[i], "-n", 3)["text"] for i in (0, 255, 256, 699)), "more prompts than places")
    check(krait("generate", here / "whole", "--file", here / "many", "-n", 3).stdout.decode().split("\n")[699] == texts[699].replace("\n", "\\n").replace("\r", "\\r"), "the order of the lines")
    done = krait("generate", here / "whole", "--chat", "-p", "hello", "-n", 3, "--json")
    check(json.loads(done.stdout)["prompt_tokens"] > 40, f"chat: {done.stdout!r}")


def texts_of_lines(model, file, *args):
    """A text for each line of the file, in the lines' order, whatever the order in which they ended."""
    done = krait("generate", model, "--file", file, *args, "--json")
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["line"])
    check([one["line"] for one in told] == list(range(1, len(told) + 1)), f"{file}: {done.stderr!r}")
    check(all((one["stop_reason"] == "empty") == (one["prompt"] == "") for one in told), f"{file}: empty lines")
    return [one["text"] for one in told]


def numbers():
    """--ids: the same tokens in and out, without a tokenizer."""
    for kind in ("whole", "two", "qwen2"):
        ids, bare = tokens_of(here / kind, PROMPT), here / f"{kind}-bare"
        shutil.copytree(here / kind, bare)
        (bare / "tokenizer.json").unlink()
        vocab = {v: k for k, v in json.loads((here / kind / "tokenizer.json").read_text())["model"]["vocab"].items()}
        letters = {letter: byte for byte, letter in tiny.alphabet().items()}
        one = story(bare, "--ids", "-p", ",".join(map(str, ids)), "-n", 20, "--ignore-eos")
        made = b"".join(bytes(letters[c] for c in vocab.get(i, "")) for i in one["ids"])
        want = story(here / kind, "-p", PROMPT, "-n", 20, "--ignore-eos")
        check(one["prompt"] == ids and one["tokens"] == 20 == len(one["ids"]) and "text" not in one, f"{kind}: {one}")
        check(made.decode(errors="replace") == want["text"], f"{kind}: {made!r}, not {want}")
        done = krait("generate", bare, "--ids", "-", "-n", 20, "--ignore-eos", stdin=" ".join(map(str, ids)).encode())
        check([int(i) for i in done.stdout.split()] == one["ids"], f"{kind}: {done}")
    bare = here / "whole-bare"
    check_error(2, "the prompt: 'x5' is not a token: with --ids give whole numbers", "generate", bare, "--ids", "-p", "3 x5")
    check_error(2, "the prompt: '99999999999' is not a token", "generate", bare, "--ids", "-p", "99999999999")
    check_error(2, "token 1 is 268, but the model's tokens are 0 to 267", "generate", bare, "--ids", "-p", "1 268")
    check_error(2, "the prompt is empty", "generate", bare, "--ids", "-p", " ")
    check_error(2, "--ids is without text", "generate", bare, "--ids", "--chat", "-p", "1")
    end = story(bare, "--ids", "-p", "1", "-n", 30, "--ignore-eos")["ids"][4]
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({**config, "eos_token_id": end}))
    short = story(bare, "--ids", "-p", "1", "-n", 30)
    check(short["ids"][-1] == end and short["tokens"] <= 5 and short["stop_reason"] == "end", f"the end: {short}")
    check(story(bare, "--ids", "-p", "1", "-n", 30, "--ignore-eos")["tokens"] == 30, "--ignore-eos")


def defaults():
    """generation_config.json: ends of a text, sampling, a token for the beginning; --no-config; --special, --logprobs."""
    own = here / "own"
    tiny.make(own, "qwen2")
    config = own / "generation_config.json"
    greedy = story(own, "-p", PROMPT, "-n", 12, "--logprobs", 3, "--ignore-eos")
    ids = [one["id"] for one in greedy["logprobs"]]
    check(len(ids) == 12 and all(one["top"][0]["id"] == one["id"] and one["top"][0]["logprob"] == one["logprob"] for one in greedy["logprobs"]), f"greedy takes the likeliest: {greedy}")
    check(all(len(one["top"]) == 3 and one["top"][0]["logprob"] >= one["top"][1]["logprob"] >= one["top"][2]["logprob"] for one in greedy["logprobs"]), "the likeliest first")
    nats = -sum(one["logprob"] for one in greedy["logprobs"])
    whole, first = (json.loads(krait("score", own, "-", "--json", stdin=text.encode()).stdout) for text in (PROMPT + greedy["text"], PROMPT))
    if whole["tokens"] == first["tokens"] + 12:  # the text's tokens are those that were generated
        got = whole["nats_per_token"] * whole["tokens"] - first["nats_per_token"] * first["tokens"]
        check(abs(got - nats) < 1e-3, f"--logprobs sum to {nats}, score says {got}")
    check_error(2, "give --json, too", "generate", own, "-p", "a", "--logprobs", 2)
    plain = story(own, "-p", PROMPT, "-n", 12)
    config.write_text(json.dumps({"eos_token_id": [267, ids[4]], "max_new_tokens": 7}))
    short = story(own, "-p", PROMPT)
    check(short["tokens"] == ids.index(ids[4]) + 1 and short["stop_reason"] == "end", f"a list of ends: {short}")
    check(story(own, "-p", PROMPT, "--ignore-eos")["tokens"] == 7, "max_new_tokens")
    check(story(own, "-p", PROMPT, "-n", 12, "--no-config")["text"] == plain["text"], "--no-config")
    config.write_text(json.dumps({"do_sample": True, "temperature": 5.0, "top_k": 50, "repetition_penalty": 1.1}))
    bold = [story(own, "-p", PROMPT, "-n", 12, *more)["text"] for more in ((), ("--temperature", 5, "--top-k", 50, "--repetition-penalty", 1.1, "--no-config"), ("--temperature", 0), ("--no-config",))]
    check(bold[0] == bold[1] != bold[3] == plain["text"] and bold[2] != bold[0], f"sampling: {bold}")
    config.write_text(json.dumps({"do_sample": True, "temperature": None}))
    check(story(own, "-p", PROMPT, "-n", 12)["text"] == story(own, "-p", PROMPT, "-n", 12, "--temperature", 1)["text"] != plain["text"], "no temperature")
    config.write_text(json.dumps({"do_sample": False, "temperature": 5.0}))
    check(story(own, "-p", PROMPT, "-n", 12)["text"] == plain["text"], "without do_sample a temperature says nothing")
    for text, words in (('{"temperature": -1, "do_sample": true}', "temperature is not a number from 0 to 1000; --no-config ignores the file"), ('{"eos_token_id": "a"}', "eos_token_id is not a whole number"), ("{", "line 1")):
        config.write_text(text)
        check_error(2, words, "generate", own, "-p", "a", "-n", 1)
        check(krait("generate", own, "-p", "a", "-n", 1, "--no-config").returncode == 0, "--no-config")
    config.write_text(json.dumps({"bos_token_id": 265}))
    empty = story(own, "-p", "", "-n", 5)
    check(empty["prompt_tokens"] == 1 and empty["tokens"] >= 1, f"an empty prompt begins with bos: {empty}")
    check(empty["text"] == story(own, "-p", "<|endoftext|>", "-n", 5)["text"], "bos")
    check(story(own, "--ids", "-p", "", "-n", 5)["prompt"] == [265], "bos as a number")
    config.unlink()
    check_error(2, "the prompt is empty", "generate", own, "-p", "")
    more = own / "tokenizer_config.json"
    more.write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True}))
    check(story(own, "-p", "a", "-n", 1)["prompt_tokens"] == 2 and story(own, "-p", "", "-n", 1)["prompt_tokens"] == 1, "add_bos_token")
    more.write_text(json.dumps({"bos_token": "<|im_start|>", "chat_template": "{{ bos_token }}### {{ message }}"}))
    check_error(2, "its chat template is none of the known ones; give the form of its conversations with --chat-format (chatml, llama3, granite, nemotron), or the text as it is", "generate", own, "--chat", "-p", "a")
    check(story(own, "--chat", "--chat-format", "chatml", "-p", "a", "-n", 1)["prompt_tokens"] == len(tokens_of(own, "user\na")) + len(tokens_of(own, "assistant")) + 3 + 2 + 1, "--chat-format")
    check_error(2, "there is no chat format 'latin'; there are chatml", "generate", own, "--chat", "--chat-format", "latin", "-p", "a")
    (own / "chat_template.jinja").write_text("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>assistant\n")
    by_file = story(own, "--chat", "-p", "a", "-n", 8)
    check(by_file["text"] == story(own, "--chat", "--system", "Be.", "-p", "a", "-n", 8)["text"] and by_file["prompt_tokens"] > 10, "chat_template.jinja's system message")
    check(by_file["prompt_tokens"] != story(own, "--chat", "--system", "Be quick.", "-p", "a", "-n", 1)["prompt_tokens"], "--system")
    check_error(2, "are for --chat", "generate", own, "--system", "a", "-p", "a")
    state = own / "one.state"
    story(own, "--chat", "-p", "a", "-n", 3, "--save-state", state)
    check(story(own, "--chat", "--load-state", state, "-p", "b", "-n", 3)["prompt_tokens"] > by_file["prompt_tokens"] + 3, "a conversation goes on behind a state")
    # a special token that the model generates
    config.write_text(json.dumps({"eos_token_id": []}))
    forced = next((k for k in range(200) if "<|" in story(own, "-p", "ab"[: k % 2 + 1] * (k // 2 + 1), "-n", 25, "--special", "--ignore-eos", "--temperature", 3, "--seed", k)["text"]), None)
    check(forced is not None, "no special token in 200 texts")
    arguments = (own, "-p", "ab"[: (forced or 0) % 2 + 1] * ((forced or 0) // 2 + 1), "-n", 25, "--ignore-eos", "--temperature", 3, "--seed", forced or 0)
    shown, hidden = story(*arguments, "--special")["text"], story(*arguments)["text"]
    for name in tiny.SPECIAL:
        shown = shown.replace(name, "")
    check(shown == hidden, f"--special: {shown!r}, without: {hidden!r}")


def conversation():
    """krait chat: lines are messages, /save and /load keep what was said, Ctrl-C ends an answer."""
    talk = lambda *lines, **kw: krait("chat", here / "qwen2", "-n", 9, "--ignore-eos", "--temperature", 2, "--special", "--stop", "\n", *kw.get("more", ()), stdin="\n".join(lines).encode())
    state = here / "said.state"
    done = talk("hello", f"/save {state}", "again", "/reset", "hello", f"/load {state}", "again", "/quit", "never")
    said = done.stdout.split(b"\n")
    check(done.returncode == 0 and len(said) == 5 and said[4] == b"" and all(b"krait chat: " in line for line in done.stderr.splitlines()), f"{done}")
    check(said[0] == said[2] and said[0] != said[1], f"/reset begins again: {done}")
    check(krait("generate", here / "qwen2", "--chat", "-p", "hello", "-n", 9, "--ignore-eos", "--temperature", 2, "--special", "--stop", "\n").stdout == said[0] + b"\n", "the first answer is generate's")
    check(talk("hello", more=("--load-state", state)).stdout != said[0] + b"\n", "--load-state")
    check(talk("hello", more=("--system", "Be.")).stdout != said[0] + b"\n", "--system")
    done = talk("/nonsense", "/save", "/load nowhere.state")
    check(done.returncode == 0 and done.stdout == b"" and b"/reset begins again" in done.stderr and b"/save needs a file" in done.stderr and b"nowhere.state" in done.stderr, f"{done}")
    (here / "own" / "chat_template.jinja").write_text("### {{ m }}")
    check_error(2, "give the form of its conversations with --chat-format", "chat", here / "own", stdin=b"hello\n")
    # Ctrl-C ends the answer; the next line has one of its own
    child = subprocess.Popen([KRAIT, "chat", str(here / "qwen2"), "-n", "100000000", "--ignore-eos", "--temperature", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdin.write(b"hello\n")
    child.stdin.flush()
    check(len(os.read(child.stdout.fileno(), 1)) == 1, "an answer begins")
    child.send_signal(signal.SIGINT)
    while not os.read(child.stdout.fileno(), 65536).endswith(b"\n"):
        pass
    time.sleep(0.2)
    check(child.poll() is None, "Ctrl-C ends the answer, not the program")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)


def verified():
    """krait verify: recorded language models, and VideoMamba."""
    golden = pathlib.Path(__file__).parent.parent / "golden"
    for model, file, rows in ((golden / "mamba_lm/mamba2-hf", "mamba_lm/mamba2.golden.safetensors", ["logits", "steps", "greedy"]), (golden / "qwen2", "qwen2/golden.safetensors", ["logits", "steps", "greedy"]),
                              *((p, f"videomamba/{p.name.replace('weights', 'golden')}", None) for p in sorted((golden / "videomamba").glob("*.weights.safetensors")))):
        done = krait("verify", model, golden / file, "--rtol", 1e-5, "--json")
        report = json.loads(done.stdout or b"{}")
        check(done.returncode == 0 and report["within"] and rows in (None, [row["name"] for row in report["outputs"]]), f"{model}: {done}")
    told = json.loads(krait("info", golden / "mamba_lm/mamba2-hf", "--json").stdout)
    sizes = {k: math.prod(v[0]) for k, v in parts_of(golden / "mamba_lm/mamba2-hf/model.safetensors").items()}
    check(told["family"] == "mamba_lm" and told["parameters"] == sum(sizes.values()) and told["weights_bytes"] == 4 * sum(sizes.values()) and told["session_bytes"] > 0 == told["token_bytes"] and told["tokenizer"] is None, f"{told}")
    told = json.loads(krait("info", here / "qwen2", "--json").stdout)
    check(told["session_bytes"] == 0 and told["token_bytes"] == tiny.LAYERS * 2 * tiny.HEAD * 4 and told["tokenizer"] == 268 and told["chat_format"] == "chatml" and told["runs_on"], f"{told}")
    check(b"a session: 0 bytes of states, and 256 for each token" in krait("info", here / "qwen2").stdout, "info of a folder")
    check(b"a session: 0 bytes of states, and 128 for each token" in krait("info", here / "qwen2-brain").stdout, "keys and values of 16 bits")
    wrong = here / "wrong.safetensors"
    data = (golden / "qwen2/golden.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    start = 8 + n + json.loads(data[8:8 + n])["golden.greedy"]["data_offsets"][0]
    wrong.write_bytes(data[:start] + bytes([data[start] ^ 1]) + data[start + 1:])
    done = krait("verify", golden / "qwen2", wrong)
    check(done.returncode == 1 and b"too large" in done.stdout, f"another token: {done}")
    check_error(2, "logits of another size", "verify", golden / "mamba_lm/mamba2-hf", golden / "qwen2/golden.safetensors")


def quantised():
    """The 8-bit model scores like its dequantized weights, and close to the original."""
    for kind in ("mamba1", "mamba2", "mamba3", "qwen2"):
        model, eight, back = here / f"{kind}-16", here / f"{kind}-8", here / f"{kind}-back"
        tiny.make(model, kind), tiny.make(eight, kind), tiny.make(back, kind)
        (eight / "model.safetensors").unlink()
        done = krait("convert", "--quantize", "q8_0", model, eight / "model.safetensors")
        check(done.returncode == 0 and done.stderr == b"", f"--quantize: {done}")
        data = (eight / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header, tensors = json.loads(data[8:8 + n]), []
        check(header.pop("__metadata__")["quantized"] == "q8_0", "metadata")
        part = lambda item: data[8 + n:][slice(*item["data_offsets"])]
        for name, item in header.items():
            if name.endswith(".q8_0"):
                rows, words = item["shape"]
                scales = struct.unpack(f"<{rows * words // 8}e", part(header[name + ".scales"]))
                values = [scales[i // 32] * v for i, v in enumerate(struct.unpack(f"<{rows * words * 4}b", part(item)))]
                tensors.append((name.removesuffix(".q8_0"), (rows, 4 * words), values))
            elif not name.endswith(".scales"):
                tensors.append((name, item["shape"], struct.unpack(f"<{(item['data_offsets'][1] - item['data_offsets'][0]) // 4}f", part(item))))
        check(sum(k.endswith(".q8_0") for k in header) == {"mamba1": 7, "mamba2": 5, "mamba3": 5, "qwen2": 15}[kind] and not any("in_proj.weight" == k[-14:] for k in header), f"what is quantised: {list(header)}")
        tiny.write_safetensors(back / "model.safetensors", tensors, "f32")
        config = (back / "config.json").read_text()
        (back / "config.json").write_text(config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')) # its head is a tensor of its own
        text = ("the rain in the north and a " * 20).encode()
        # many rows of 8-bit products may be rounded to 16 bits a block
        exact, got, original = (json.loads(krait("score", m, "-", "--json", stdin=text).stdout)["nats_per_token"] for m in (back, eight, model))
        check(abs(got - exact) < 1e-4 * exact, f"{kind}: q8_0 scores {got}, its own weights {exact}")
        check(abs(got - original) < 0.03 * original, f"{kind}: q8_0 scores {got}, the original {original}")
        a, b = (json.loads(krait("generate", m, "-p", PROMPT, "-n", 20, "--json").stdout)["text"] for m in (back, eight))
        check(a == b, f"{kind}: q8_0 says {b!r}, its own weights {a!r}")
    tiny.make(here / "nameless")
    data = (here / "nameless" / "model.safetensors").read_bytes()
    (here / "nameless" / "model.safetensors").write_bytes(data.replace(b"backbone.norm_f.weight", b"backbone.norm_g.weight"))
    check_error(1, "has no tensor 'backbone.norm_f.weight'; only language models", "convert", "--quantize", "q8_0", here / "nameless", here / "x.safetensors")
    damaged = here / "damaged"
    tiny.make(damaged, "mamba1")
    data = bytearray((damaged / "model.safetensors").read_bytes())
    n = struct.unpack("<Q", data[:8])[0]
    start = 8 + n + json.loads(data[8:8 + n])["backbone.layers.1.mixer.out_proj.weight"]["data_offsets"][0]
    for at in (300, 77): # the first one is named, whichever thread sees it
        struct.pack_into("<f", data, start + 4 * at, math.inf)
    (damaged / "model.safetensors").write_bytes(data)
    check_error(1, "out_proj.weight' is not finite at element 77;", "convert", "--quantize", "q8_0", damaged, here / "x.safetensors")
    check_error(2, "unknown quantization 'q3'", "convert", "--quantize", "q3", here / "whole", here / "x.safetensors")
    check_error(2, "exists", "convert", "--quantize", "q8_0", here / "whole", here / "mamba1-8" / "model.safetensors")
    check_error(2, "it is the model's model.safetensors", "convert", "--quantize", "q8_0", here / "whole", here / "whole" / "model.safetensors", "-f")
    for kind in ("q8_0", "q4_k"):
        check_error(1, "no matrix to quantize: each is quantized already", "convert", "--quantize", kind, here / "mamba1-8", here / "x.safetensors")
    check(not (here / "x.safetensors").exists(), "nothing is written")


def four_bits(data):
    """The weights of 144-byte super-blocks."""
    values = []
    for at in range(0, len(data), 144):
        d, e = struct.unpack("<2e", data[at:at + 4])
        six, q = data[at + 4:at + 16], data[at + 16:at + 144]
        scales = [v & 63 for v in six[:4]] + [(six[8 + j] & 15) | six[j] >> 6 << 4 for j in range(4)]
        minima = [v & 63 for v in six[4:8]] + [six[8 + j] >> 4 | six[4 + j] >> 6 << 4 for j in range(4)]
        for j in range(8):
            part = q[j // 2 * 32:j // 2 * 32 + 32]
            levels = [d * scales[j] * v - e * minima[j] for v in range(16)]
            values += [levels[v >> 4] for v in part] if j % 2 else [levels[v & 15] for v in part]
    return values


def rms_error(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a))


def quantised_4():
    """The 4-bit model scores like its dequantized weights. The error for normally distributed weights is 6.9 % of their
    root mean square (measured)."""
    for kind, n_four, n_eight in (("mamba1", 4, 3), ("qwen2", 14, 1)):
        model, four, back = here / f"{kind}-wide", here / f"{kind}-4", here / f"{kind}-4-back"
        tiny.D = 256
        tiny.make(model, kind)
        tiny.D = 32
        for folder in (four, back):
            folder.mkdir()
            for name in ("config.json", "tokenizer.json"):
                text = (model / name).read_text()
                (folder / name).write_text(text.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false') if folder == back else text)
        done = krait("convert", "--quantize", "q4_k", model, four / "model.safetensors")
        check(done.returncode == 0 and done.stderr == b"", f"--quantize q4_k: {done}")
        data, was = (four / "model.safetensors").read_bytes(), read_tensors(model / "model.safetensors")
        n = struct.unpack("<Q", data[:8])[0]
        header, tensors = json.loads(data[8:8 + n]), []
        check(header.pop("__metadata__")["quantized"] == "q4_k", "metadata")
        part = lambda item: data[8 + n:][slice(*item["data_offsets"])]
        for name, item in header.items():
            if name.endswith(".q4_k"):
                own, (rows, words) = name.removesuffix(".q4_k"), item["shape"]
                values = four_bits(part(item))
                error = rms_error(was[own][1], values)
                check(0.05 < error < 0.072, f"{name}: an error of {error}")
                tensors.append((own, (rows, words // 36 * 256), values))
            elif name.endswith(".q8_0"):
                rows, words = item["shape"]
                scales = struct.unpack(f"<{rows * words // 8}e", part(header[name + ".scales"]))
                tensors.append((name.removesuffix(".q8_0"), (rows, 4 * words), [scales[i // 32] * v for i, v in enumerate(struct.unpack(f"<{rows * words * 4}b", part(item)))]))
            elif not name.endswith(".scales"):
                tensors.append((name, item["shape"], struct.unpack(f"<{(item['data_offsets'][1] - item['data_offsets'][0]) // 4}f", part(item))))
        check(sum(k.endswith(".q4_k") for k in header) == n_four and sum(k.endswith(".q8_0") for k in header) == n_eight, f"what is quantised: {list(header)}")
        tiny.write_safetensors(back / "model.safetensors", tensors, "f32")
        text = ("the rain in the north and a " * 20).encode()
        exact, got, original = (json.loads(krait("score", m, "-", "--json", stdin=text).stdout)["nats_per_token"] for m in (back, four, model))
        check(abs(got - exact) < 1e-4 * exact, f"{kind}: q4_k scores {got}, its own weights {exact}")
        check(abs(got - original) < 0.01 * original, f"{kind}: q4_k scores {got}, the original {original}")
        a, b = (json.loads(krait("generate", m, "-p", PROMPT, "-n", 20, "--json").stdout)["text"] for m in (back, four))
        check(a == b, f"{kind}: q4_k says {b!r}, its own weights {a!r}")
        (four / "model.safetensors").write_bytes(data.replace(b".q4_k", b".q4_z"))
        check_error(2, "is missing", "generate", four, "-p", "a")
        (four / "model.safetensors").write_bytes(data)


def parts_of(path):
    """{name: sizes, type and bytes} of a safetensors file's tensors."""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__")
    return {k: (v["shape"], v["dtype"], data[8 + n:][slice(*v["data_offsets"])]) for k, v in header.items()}


def gguf_tensors(path):
    """A safetensors file's tensors as llama.cpp's converter writes them; krait's q8_0 and q4_k as blocks."""
    items, tensors = parts_of(path), []
    for name, (shape, kind, blob) in items.items():
        own = name.removesuffix(".q8_0").removesuffix(".q4_k")
        if name.endswith(".scales") or (own == "lm_head.weight" and "backbone.embeddings.weight" in items):
            continue
        if name.endswith(".q8_0"):
            scales = items[name + ".scales"][2]
            shape, kind, blob = [shape[0], 4 * shape[1]], "Q8_0", b"".join(scales[2 * i:2 * i + 2] + blob[32 * i:32 * i + 32] for i in range(len(scales) // 2))
        elif name.endswith(".q4_k"):
            shape, kind = [shape[0], shape[1] // 36 * 256], "Q4_K"
        if len(shape) != 2 or name.endswith("A_log"): # the converter writes non-matrices as F32, and A instead of A_log
            values = [struct.unpack("<f", b"\0\0" + blob[i:i + 2])[0] for i in range(0, len(blob), 2)] if kind == "BF16" else struct.unpack(f"<{len(blob) // (2 if kind == 'F16' else 4)}{'e' if kind == 'F16' else 'f'}", blob)
            values = [-math.exp(v) for v in values] if name.endswith("A_log") else values
            kind, blob = "F32", struct.pack(f"<{len(values)}f", *values)
            shape = [shape[0], 1] if name.endswith("A_log") and len(shape) == 1 else shape
        tensors.append((tiny.gguf_name(own), [shape[0], shape[2]] if len(shape) == 3 else shape, kind, blob))
    return tensors


def score_of(model, text):
    done = krait("score", model, "-", "--json", stdin=text)
    check(done.returncode == 0, f"score {model}: {done.stderr!r}")
    return json.loads(done.stdout)["nats_per_token"] if done.returncode == 0 else math.nan


def gguf():
    """A GGUF file of any type gives the same output as the folder with the same weights."""
    text = ("the rain in the north and a " * 20).encode()
    for folder in ("mamba1", "falcon", "two", "qwen2", "half", "brain", "mamba1-8", "mamba2-8", "mamba1-4"):
        file = here / f"{folder}.gguf"
        tiny.write_gguf(file, tiny.gguf_values(here / folder), gguf_tensors(here / folder / "model.safetensors"))
        want, got = score_of(here / folder, text), score_of(file, text)
        # in a quantised folder the output matrix is quantised too, in the file it is the embedding
        check(abs(got - want) < (1e-6 if "-" not in folder else 5e-3) * want, f"{folder}: as GGUF {got}, as a folder {want}")
        check("-" in folder or story(file, "-p", PROMPT, "-n", 20)["text"] == story(here / folder, "-p", PROMPT, "-n", 20)["text"], f"{folder}: wrong text")
    done = krait("info", here / "mamba1.gguf")
    check(done.returncode == 0 and done.stdout.startswith(b"format: gguf\nmodel: mamba\n") and b"backbone.layers.1.mixer.A_log" in done.stdout, f"info: {done}")
    done = krait("convert", "--quantize", "q8_0", here / "mamba1.gguf", here / "of-gguf.safetensors")
    check(done.returncode == 0 and parts_of(here / "of-gguf.safetensors")["lm_head.weight.q8_0"] == parts_of(here / "mamba1-8" / "model.safetensors")["lm_head.weight.q8_0"], f"convert of GGUF: {done}")
    tensors, rng, file, out = gguf_tensors(here / "mamba1" / "model.safetensors"), random.Random(4), here / "blocks-above.gguf", here / "blocks-above.safetensors"
    at, (rows, width) = next((i, t[1]) for i, t in enumerate(tensors) if t[0] == "token_embd.weight")
    tensors[at] = ("token_embd.weight", [rows, width], "Q8_0", b"".join(small_block("Q8_0", rng)[0] for _ in range(rows * width // 32)))
    tiny.write_gguf(file, tiny.gguf_values(here / "mamba1"), tensors)
    done = krait("convert", "--quantize", "q8_0", file, out)
    check(done.returncode == 0 and krait("info", out).returncode == 0, f"an output matrix that is quantised already: {done} {krait('info', out)}")


def small_block(kind, rng):
    """32 weights of Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0: bytes, multiples of the scale, scale, weights. Few bits, so that
    nothing rounds in any order of operations."""
    bits, factor, least = int(kind[1]), rng.randint(1, 60) / 4096, rng.randint(-60, 60) / 1024 if kind[-1] == "1" else None
    levels = [rng.randrange(1 << bits) for _ in range(32)]
    head = struct.pack("<e", factor) if least is None else struct.pack("<2e", factor, least)
    multiples = [level - (1 << bits - 1 if least is None else 0) for level in levels]
    if bits == 8:
        return head + struct.pack("<32b", *multiples), multiples, factor, [factor * m for m in multiples]
    fifths = sum((level >> 4) << i for i, level in enumerate(levels)).to_bytes(4, "little") if bits == 5 else b""
    return head + fifths + bytes(levels[i] & 15 | (levels[i + 16] & 15) << 4 for i in range(16)), multiples, factor, [factor * m + (least or 0) for m in multiples]


def large_block(kind, rng):
    """256 weights of Q2_K to Q6_K: their bytes and the weights."""
    bits = int(kind[1])
    q, factor, least = [rng.randrange(1 << bits) for _ in range(256)], rng.randint(1, 7) / 65536, rng.randint(1, 7) / 8192
    two = lambda levels, shift: bytes(sum((levels[128 * h + 32 * j + i] >> shift & 3) << 2 * j for j in range(4)) for h in range(2) for i in range(32))
    top = lambda levels: bytes(sum((levels[32 * j + i] >> bits - 1) << j for j in range(8)) for i in range(32))
    fours = lambda levels: bytes(levels[64 * p + i] & 15 | (levels[64 * p + 32 + i] & 15) << 4 for p in range(4) for i in range(32))
    if bits in (4, 5):
        s, m = ([rng.randrange(64) for _ in range(8)] for _ in range(2))
        packed = bytes([s[j] | s[j + 4] >> 4 << 6 for j in range(4)] + [m[j] | m[j + 4] >> 4 << 6 for j in range(4)] + [s[j + 4] & 15 | (m[j + 4] & 15) << 4 for j in range(4)])
        return struct.pack("<2e", factor, least) + packed + (top(q) if bits == 5 else b"") + fours(q), [factor * s[k // 32] * q[k] - least * m[k // 32] for k in range(256)]
    if bits == 2:
        s, m = ([rng.randrange(16) for _ in range(16)] for _ in range(2))
        return bytes(s[i] | m[i] << 4 for i in range(16)) + two(q, 0) + struct.pack("<2e", factor, least), [factor * s[k // 16] * q[k] - least * m[k // 16] for k in range(256)]
    s = [rng.randint(-32, 31) if bits == 3 else rng.randint(-128, 127) for _ in range(16)]
    values = [factor * s[k // 16] * (q[k] - (1 << bits - 1)) for k in range(256)]
    if bits == 3:
        u = [v + 32 for v in s]
        packed = bytes([u[i] & 15 | (u[i + 8] & 15) << 4 for i in range(8)] + [sum((u[4 * j + i] >> 4) << 2 * j for j in range(4)) for i in range(4)])
        return top(q) + two(q, 0) + packed + struct.pack("<e", factor), values
    low = bytes(q[128 * h + 32 * p + i] & 15 | (q[128 * h + 32 * p + 64 + i] & 15) << 4 for h in range(2) for p in range(2) for i in range(32))
    return low + two(q, 4) + struct.pack("<16be", *s, factor), values


def gguf_blocks():
    """ggml's block types, made from random levels: convert preserves their values bit for bit, as multiples of a scale
    or as float16."""
    rng = random.Random(3)
    values, tensors = tiny.gguf_values(here / "mamba1-wide"), gguf_tensors(here / "mamba1-wide" / "model.safetensors")
    file, out, own, ours = here / "blocks.gguf", here / "blocks.safetensors", "blk.1.ssm_out.weight", "backbone.layers.1.mixer.out_proj.weight"
    i, shape = next((i, t[1]) for i, t in enumerate(tensors) if t[0] == own)
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        made = [(small_block if kind[-1] != "K" else large_block)(kind, rng) for _ in range(shape[0] * shape[1] // (256 if kind[-1] == "K" else 32))]
        blob, weights = b"".join(m[0] for m in made), [w for m in made for w in m[-1]]
        tiny.write_gguf(file, values, tensors[:i] + [(own, shape, kind, blob)] + tensors[i + 1:])
        out.unlink(missing_ok=True)
        done = krait("convert", file, out)
        check(done.returncode == 0, f"{kind}: {done}")
        got = parts_of(out)
        if kind in ("Q4_0", "Q5_0", "Q8_0"):
            check(got[ours + ".q8_0"][2] == b"".join(struct.pack("<32b", *m[1]) for m in made) and got[ours + ".q8_0.scales"][2] == b"".join(struct.pack("<e", m[2]) for m in made), f"{kind}: wrong multiples")
        elif kind == "Q4_K":
            check(got[ours + ".q4_k"][2] == blob, "Q4_K: other bytes")
            lost = here / "wide-lost.gguf"
            tiny.write_gguf(lost, values, tensors[:i] + [(own, shape, "F32", struct.pack(f"<{len(weights)}f", *weights))] + tensors[i + 1:])
            want, is_ = score_of(lost, b"the rain in the north"), score_of(file, b"the rain in the north")
            check(abs(is_ - want) < 1e-5 * want, f"Q4_K: {is_}, its weights as float32 {want}")
        else:
            check(got[ours][1] == "F16" and got[ours][2] == struct.pack(f"<{len(weights)}e", *weights), f"{kind}: wrong weights")
        said = krait("info", file).stdout.decode()
        check(f"gguf.{kind}" in said and "1 tensor read as " + ("q4_k" if kind == "Q4_K" else "q8_0" if kind in ("Q4_0", "Q5_0", "Q8_0") else "float16") in said, f"info of {kind}: {said}")
    mixed = []  # all matrices in blocks of 32, also the embedding, which is the output matrix: q8_0's scores, bit for bit
    for kind in ("Q5_0", "Q8_0"):
        rng.seed(4)
        for name, shape, was, blob in tensors:
            if len(shape) == 2 and shape[1] % 32 == 0 and "ssm_a" not in name and "conv" not in name:
                made = [small_block("Q5_0", rng) for _ in range(shape[0] * shape[1] // 32)]
                blob, was = b"".join(m[0] if kind == "Q5_0" else struct.pack("<e32b", m[2], *m[1]) for m in made), kind
            mixed.append((name, shape, was, blob))
        tiny.write_gguf(here / f"all-{kind}.gguf", values, mixed)
        mixed = []
    check(score_of(here / "all-Q5_0.gguf", b"the rain") == score_of(here / "all-Q8_0.gguf", b"the rain"), "Q5_0 is not Q8_0 of the same values")


def gguf_refused():
    folder, file = here / "mamba1", here / "bad.gguf"
    values, tensors = tiny.gguf_values(folder), gguf_tensors(folder / "model.safetensors")
    whole = (here / "mamba1.gguf").read_bytes()

    def bad(sentence, change=None, keep=None, data=None, exit_status=2):
        tiny.write_gguf(file, {k: v for k, v in {**values, **(change or {})}.items() if v is not None}, tensors if keep is None else keep)
        if data is not None:
            file.write_bytes(data)
        check_error(exit_status, sentence, "generate", file, "-p", "a", "-n", 1)

    bad("its general.architecture is 'gemma'", {"general.architecture": "gemma"})
    bad("its general.architecture is ''", {"general.architecture": []})
    bad("no tokenizer.ggml.tokens", {"tokenizer.ggml.tokens": [], "tokenizer.ggml.token_type": None})
    bad("tokenizer.ggml.pre is 'whisper'; only gpt-2, ", {"tokenizer.ggml.pre": "whisper"})
    bad("no tokenizer.ggml.merges", {"tokenizer.ggml.merges": None})
    bad("no tokenizer.ggml.tokens", {"tokenizer.ggml.tokens": None})
    bad("is not 'gpt2' or 'llama'", {"tokenizer.ggml.model": "bert"})
    bad("no tokenizer.ggml.scores", {"tokenizer.ggml.model": "llama"})
    bad("is missing", keep=tensors[:-1])
    bad("has ggml type 99", keep=[(n, s, 99 if "ssm_in" in n else k, b) for n, s, k, b in tensors])
    bad("not a multiple of the block size 256", keep=[(n, s, "Q4_K" if "ssm_in" in n else k, b) for n, s, k, b in tensors])
    bad("one of the 3 files of a model", {"split.count": 3})
    bad("has no num_hidden_layers", {"mamba.block_count": None})
    bad("is not finite", keep=[(n, s, k, b"\0\0\x80?" * (len(b) // 4) if n.endswith("ssm_a") else b) for n, s, k, b in tensors])
    bad("truncated or inconsistent", data=whole[:-100])
    bad("truncated or inconsistent", data=whole[:1000])
    bad("GGUF version 1", data=whole[:4] + b"\1" + whole[5:])


def refused():
    bad = here / "bad"
    tiny.make(bad, shards=2)
    (bad / "model-00002-of-00002.safetensors").unlink()
    check_error(2, "names model-00002-of-00002.safetensors, which is missing", "generate", bad, "-p", "a")
    index = bad / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    check_error(2, "which is outside its folder", "generate", bad, "-p", "a")
    index.write_text("{}")
    check_error(2, "no weight_map", "generate", bad, "-p", "a")
    index.write_text('{"weight_map": {}}')
    check_error(2, "its weight_map is empty", "generate", bad, "-p", "a")
    tiny.make(bad)
    index.unlink()
    good = (bad / "model.safetensors").read_bytes()
    (bad / "model.safetensors").write_bytes(good.replace(b"layers.1.mixer.D", b"layers.1.mixer.E"))
    check_error(2, "'backbone.layers.1.mixer.D' is missing", "generate", bad, "-p", "a")
    at = good.index(b"norm_f")
    (bad / "model.safetensors").write_bytes(good[:at] + good[at:].replace(b'"shape": [32], ', b'"shape":[4,8], ', 1))
    check_error(2, "'backbone.norm_f.weight' has shape (4, 8), the model requires (32)", "generate", bad, "-p", "a")
    (bad / "model.safetensors").write_bytes(good[:-5])
    check_error(2, "truncated", "generate", bad, "-p", "a")
    (bad / "model.safetensors").write_bytes(good)
    words = json.loads((bad / "tokenizer.json").read_text())
    del words["model"]["merges"]
    (bad / "tokenizer.json").write_text(json.dumps(words))
    check_error(2, "has no merges", "generate", bad, "-p", "a")
    (bad / "tokenizer.json").unlink()
    check_error(2, "has no tokenizer.json; give one with --tokenizer", "generate", bad, "-p", "a")
    check(krait("generate", bad, "-p", "a", "-n", 1, "--tokenizer", here / "whole" / "tokenizer.json").returncode == 0, "--tokenizer")
    check(krait("generate", bad, "-p", "a", "-n", 1, "--tokenizer", here / "whole").returncode == 0, "--tokenizer with the folder of one")
    config = (bad / "config.json").read_text()
    for change, words in (('"mamba"', ('"gpt2"', "config.json says 'gpt2'")), ('"hidden_size": 32', ('"hidden_size": 33', "says a width of 33, the embedding has 32")),
                          ('"num_hidden_layers": 2', ('"num_hidden_layers": 3', "'backbone.layers.2.norm.weight' is missing")),
                          ('"num_hidden_layers": 2', ('"num_hidden_layers": 1', "says 1 layers, but there is a tensor 'backbone.layers.1.norm.weight'"))):
        (bad / "config.json").write_text(config.replace(change, words[0]))
        check_error(2, words[1], "generate", bad, "-p", "a", "--tokenizer", here / "whole" / "tokenizer.json")
    tiny.make(bad, "qwen2")
    (bad / "config.json").write_text(json.dumps({**json.loads((bad / "config.json").read_text()), "model_type": "gptj"}))
    check_error(2, "config.json says 'gptj'; krait supports Mamba", "generate", bad, "-p", "a")
    tiny.make(bad, "qwen2")
    config, good = (bad / "config.json").read_text(), (bad / "model.safetensors").read_bytes()
    for change, (new, words) in {'"hidden_act": "silu"': ('"hidden_act": "relu"', "hidden_act is not silu"), '"num_key_value_heads": 1': ('"num_key_value_heads": 3', "do not match"),
                                 '"num_hidden_layers": 2': ('"num_hidden_layers": 3', "'model.layers.2.input_layernorm.weight' is missing"), 'hidden_layers": 2': ('hidden_layers": 1', "says 1 layers, but"), '"rope_theta": 1000000.0': ('"rope_scaling": {"type": "yarn"}', "'yarn' is not"),
                                 '"tie_word_embeddings": true': ('"tie_word_embeddings": false', "'lm_head.weight' is missing"), '"intermediate_size": 64': ('"intermediate_size": 63', "the model requires (63, 32)")}.items():
        check(change in config, change)
        (bad / "config.json").write_text(config.replace(change, new))
        check_error(2, words, "generate", bad, "-p", "a")
    (bad / "config.json").write_text(config)
    (bad / "model.safetensors").write_bytes(good.replace(b"layers.1.self_attn.k_proj.bias", b"layers.1.self_attn.k_proj.bies"))
    check_error(2, "'model.layers.1.self_attn.k_proj.bias' is missing", "generate", bad, "-p", "a")
    (bad / "config.json").unlink()
    check_error(2, "there is no config.json in it; give a model's folder or a GGUF file", "generate", bad, "-p", "a")
    check_error(2, "there is no such folder or file", "generate", here / "nowhere", "-p", "a")
    check_error(2, "no prompt", "generate", here / "whole")
    check_error(2, "three ways", "generate", here / "whole", "-", "-p", "a")
    check_error(2, "'b' after the model", "generate", here / "whole", "b")
    check_error(2, "--top-p is '2'", "generate", here / "whole", "-p", "a", "--top-p", 2)
    check_error(2, "the prompt is empty", "generate", here / "whole", "-p", "")
    check_error(2, "not UTF-8: byte 0xff at 1; convert it to UTF-8", "generate", here / "whole", "-", stdin=b"a\xff")
    (here / "torn").write_bytes(b"a\n\nb\xff\n")
    check_error(2, "torn: line 3: the text is not UTF-8: byte 0xff at 1", "generate", here / "whole", "--file", here / "torn")
    both = subprocess.run([KRAIT, "generate", here / "whole", "-p", "a", "-n", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    check(b"\nprompt: 1 tokens" in both.stdout, f"the rates begin a line: {both.stdout}")
    check_error(2, "standard input: the text has 1 tokens; a score needs at least two", "score", here / "whole", "-", stdin=b"a")
    check_error(2, "torn: the text is not UTF-8: byte 0xff at 4", "score", here / "whole", here / "torn")
    (here / "alone").mkdir()
    shutil.copy(here / "shards" / "model-00001-of-00003.safetensors", here / "alone")
    check_error(2, "there is no config.json beside it", "generate", here / "alone" / "model-00001-of-00003.safetensors", "-p", "a")
    shutil.copy(here / "whole" / "config.json", here / "alone")
    check_error(2, "if its weights have another name, give them", "generate", here / "alone", "-p", "a")
    for name in ("config.json", "tokenizer.json"):
        (here / "alone" / "model.safetensors").write_bytes(good)
        (here / "alone" / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        check_error(2, f"{name} is a Git LFS pointer, not the file itself; get that with git lfs pull", "generate", here / "alone", "-p", "a")
        shutil.copy(here / "whole" / name, here / "alone")
    (here / "alone" / "config.json").write_text('{"model_type": "mamba"')
    check_error(2, "config.json: line 2 is not JSON", "generate", here / "alone", "-p", "a")
    check_error(2, "nowhere.json: there is no such folder or file", "generate", here / "whole" / "nowhere.json", "-p", "a")
    check_error(2, "cannot read", "score", here / "whole", here / "nowhere")
    check_error(2, "has no prompts", "generate", here / "whole", "--file", "/dev/null")
    check_error(2, "cannot read /dev/zero: File too large", "generate", here / "whole", "--file", "/dev/zero")


def form_of_A():
    """A Mamba-3 model that does not say which form of A it was trained with: one line, and the environment may say."""
    tiny.make(here / "third", "mamba3"), tiny.make(here / "unsaid", "mamba3")
    config = json.loads((here / "unsaid" / "config.json").read_text())
    del config["ssm_cfg"]["A_activation"]
    (here / "unsaid" / "config.json").write_text(json.dumps(config))
    text = b"the rain in the north and a "
    score = lambda model, **env: krait("score", here / model, "-", "--json", stdin=text, env={**os.environ, **env})
    said, unsaid, chosen, other = score("third"), score("unsaid"), score("unsaid", KRAIT_MAMBA3_A="heavy_tail"), score("unsaid", KRAIT_MAMBA3_A="softplus")
    check(said.stderr == chosen.stderr == other.stderr == b"" and unsaid.stderr.count(b"\n") == 1 and b"KRAIT_MAMBA3_A=softplus" in unsaid.stderr, f"what is said about A: {unsaid.stderr}")
    check(said.stdout == unsaid.stdout == chosen.stdout != other.stdout, "the form of A that is taken")
    check(score("third", KRAIT_MAMBA3_A="softplus").stdout == said.stdout, "what the file says counts")
    check_error(2, "KRAIT_MAMBA3_A is 'soft', must be heavy_tail or softplus", "score", here / "unsaid", "-", stdin=text, env={**os.environ, "KRAIT_MAMBA3_A": "soft"})
    for old, new, message in (('"d_state"', '"rope_fraction": 0.3, "d_state"', "rope_fraction is 0.3"), ('"headdim": 16', '"headdim": 32', "in_proj.weight"), ('"d_state"', '"ngroups": 3, "d_state"', "not a multiple of 3 groups"),
                              ('"heavy_tail"', '"relu"', "A_activation is 'relu'"), ('"d_state"', '"is_mimo": true, "d_state"', "mimo_x")):
        bad = here / "third-bad"
        tiny.make(bad, "mamba3")
        (bad / "config.json").write_text((bad / "config.json").read_text().replace(old, new))
        check_error(2, message, "score", bad, "-", stdin=text)


def damaged():
    """A NaN weight: an error, not a text."""
    for kind in ("mamba1", "mamba2", "mamba3", "qwen2"):
        bad = here / f"{kind}-damaged"
        tiny.make(bad, kind)
        data = bytearray((bad / "model.safetensors").read_bytes())
        n = struct.unpack("<Q", data[:8])[0]
        name, item = next((k, v) for k, v in json.loads(data[8:8 + n]).items() if "layers.1." in k and "norm" in k)
        at = 8 + n + item["data_offsets"][0]
        for value in (math.nan, math.inf):
            data[at:at + 4] = struct.pack("<f", value)
            (bad / "model.safetensors").write_bytes(data)
            for more in ((), ("--temperature", 1, "--top-k", 5), ("--json",)):
                check_error(1, "not finite", "generate", bad, "-p", PROMPT, "-n", 3, *more)
            for more in ((), ("--json",)):
                check_error(2, "not finite", "score", bad, "-", *more, stdin=b"the rain in the north")


def damaged_mixture():
    """More experts a token than there are, another activation, NaN experts: errors that name them."""
    own = pathlib.Path(__file__).resolve().parents[1] / "golden" / "hybrids" / "qwen3-mixture"
    bad = here / "mixture-damaged"
    shutil.copytree(own, bad)
    config, text = json.loads((own / "config.json").read_text()), ("generate", bad, "--ids", "-p", "5 6 7", "-n", 3)
    check(krait(*text).returncode == 0, "a mixture")
    for change, why in (({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, but layer 1 has 5 experts"), ({"num_experts_per_tok": 0}, "num_experts_per_tok"), ({"hidden_act": "gelu"}, "hidden_act")):
        (bad / "config.json").write_text(json.dumps(config | change))
        check_error(2, why, *text)
    (bad / "config.json").write_text(json.dumps(config))
    data = bytearray((own / "model.safetensors").read_bytes())
    n = struct.unpack("<Q", data[:8])[0]
    longer, later = ("generate", bad, "--ids", "-p", "5 6 7", "-n", 12, "--ignore-eos"), 0
    whole = krait(*longer).stdout
    for name, item in json.loads(data[8:8 + n]).items():
        if name.endswith("down_proj.weight") and ".experts." in name:
            at = 8 + n + item["data_offsets"][0]
            one = bytearray((own / "model.safetensors").read_bytes())
            one[at:at + 2] = data[at:at + 2] = b"\xc0\x7f"
            (bad / "model.safetensors").write_bytes(one)
            done = krait(*longer) # right until a token takes this expert
            check(done.stdout == whole if done.returncode == 0 else done.returncode == 1 and b"not finite" in done.stderr and whole.startswith(done.stdout), f"{name} with NaN: {done}")
            later += done.returncode == 1 and b"token 3:" not in done.stderr
    check(later > 0, "no expert with NaN is taken after the prompt")
    (bad / "model.safetensors").write_bytes(data) # of each, whichever the router chooses
    check_error(1, "not finite", *text)
    # --sizes loads nothing: experts by other names would be no part of what is timed
    timed = ("bench", "generate", "--sizes", bad, "--device", "cpu", "--prompt", 2, "--tokens", 2)
    check(krait(*timed).returncode == 0, "the sizes of a mixture")
    (bad / "model.safetensors").write_bytes(data.replace(b".down_proj.weight", b".down_prox.weight"))
    check_error(2, "down_prox.weight' is of no part that family", *timed)


def kinds_of_layers():
    """Layers that config.json calls otherwise than their tensors are, or by a name that nobody knows."""
    for name in ("granite", "qwen3-next", "olmo-hybrid-saved"):
        own, bad = pathlib.Path(__file__).resolve().parents[1] / "golden" / "hybrids" / name, here / f"{name}-kinds"
        shutil.copytree(own, bad)
        config = json.loads((own / "config.json").read_text())
        for kind in ("sliding_attention", next(k for k in config["layer_types"] if k != config["layer_types"][1])):
            (bad / "config.json").write_text(json.dumps(config | {"layer_types": [kind if i == 1 else k for i, k in enumerate(config["layer_types"])]}))
            check_error(2, f"layer 1 is '{kind}'", "generate", bad, "--ids", "-p", "5 6 7", "-n", 3)


def little_memory():
    """Prompt and weights that do not fit in memory: one line, no crash."""
    if b"__asan_init" in pathlib.Path(KRAIT).read_bytes():
        return  # AddressSanitizer wants terabytes of addresses for itself
    long = here / "long.txt"
    long.write_bytes(b"the rain in the north and a " * 1000000)
    for model, kib in (("whole", 120000), ("qwen2", 700000)): # a tokenised prompt fits the larger limit, its keys and values do not
        limit = f"ulimit -v {kib}; exec {KRAIT} generate {here / model} - --threads 1 -n 1 < {long}"
        done = subprocess.run(["bash", "-c", limit], capture_output=True, timeout=120)
        check(done.returncode in (1, 2) and done.stderr.count(b"\n") == 1 and b"memory" in done.stderr, f"too long for the memory: {done}")


def interrupted():
    """With --save-state, Ctrl-C ends the text and saves the state; a second one, or the first without a state, ends the
    program."""
    child = subprocess.Popen([KRAIT, "generate", str(here / "whole"), "-p", PROMPT, "-n", "100000000", "--temperature", "1", "--save-state", str(here / "never.state")], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, 4096)  # full by then: the signal arrives while a write waits for the reader
    first = os.read(child.stdout.fileno(), 1)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    time.sleep(0.1)
    rest, errors = child.communicate(timeout=60)
    check(first and child.returncode == 130 and errors.count(b"\n") == 1 and b"stopped" in errors, f"Ctrl-C: {child.returncode} {errors!r}")
    check(len(rest) > 100, "tokens were streamed until Ctrl-C")
    check(b"what was read and generated is in " in errors and b"never.state\n" in errors, f"Ctrl-C: {errors!r}")
    check(story(here / "whole", "--load-state", here / "never.state", "-n", 3)["prompt_tokens"] > 100, "the state after Ctrl-C has the text so far")
    child = subprocess.Popen([KRAIT, "generate", str(here / "whole"), "-p", PROMPT, "-n", "100000000", "--temperature", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(child.stdout.fileno(), 1)
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=60)
    check(child.returncode == 130 and errors.count(b"\n") == 1 and b"no unfinished output is left" in errors, f"Ctrl-C without a state: {child.returncode} {errors!r}")
    # on a terminal the line of Ctrl-C is not the end of the text's
    master, slave = os.openpty()
    child = subprocess.Popen([KRAIT, "generate", str(here / "whole"), "-p", PROMPT, "-n", "100000000"], stdout=slave, stderr=slave)
    os.close(slave)
    shown = os.read(master, 1)
    child.send_signal(signal.SIGINT)
    try:
        while more := os.read(master, 65536):
            shown += more
    except OSError:  # the other side is closed
        os.close(master)
    check(child.wait(timeout=60) == 130 and shown.split(b"\n")[-2].startswith(b"krait generate: stopped"), f"Ctrl-C on a terminal: {shown[-200:]!r}")
    # the reader closes the pipe: no further tokens
    child = subprocess.Popen([KRAIT, "generate", str(here / "whole"), "-p", PROMPT, "-n", "100000000", "--temperature", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(child.stdout.fileno(), 1)
    child.stdout.close()
    errors = child.stderr.read()
    check(child.wait(timeout=60) == 1 and errors.count(b"\n") == 1 and b"cannot write standard output" in errors, f"a closed pipe: {child.returncode} {errors!r}")
    # output printed at the end is printed then
    child = subprocess.Popen([KRAIT, "generate", str(here / "whole"), "--file", str(here / "prompts"), "-n", "100000000", "--temperature", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    lines, errors = child.communicate(timeout=60)
    told = [json.loads(line) for line in lines.splitlines()]
    check(child.returncode == 130 and errors.count(b"\n") == 1 and b"the text generated so far has been printed" in errors, f"Ctrl-C with --json: {child.returncode} {errors!r}")
    check(len(told) == 5 and all(one["tokens"] > 0 and one["text"] for one in told if one["prompt"]) and "interrupted" in [one["stop_reason"] for one in told], f"Ctrl-C with --json: {told}"[:1000])


against_plain("mamba1")
against_plain("falcon")
whole = same_text_by_other_ways()
states(whole)
sampling(whole)
stops(whole)
several()
numbers()
defaults()
conversation()
verified()
quantised()
quantised_4()
gguf()
gguf_blocks()
gguf_refused()
refused()
form_of_A()
damaged()
damaged_mixture()
kinds_of_layers()
little_memory()
interrupted()
finish()
