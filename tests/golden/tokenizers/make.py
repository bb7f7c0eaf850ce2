"""Makes tokenizers of the forms that published models have, and texts with their tokens, with Hugging Face's tokenizers
(0.23.3). The vocabularies are small and trained on the texts of this file.

    python3 tests/golden/tokenizers/make.py FOLDER [--texts N] [--seed S] [KIND...]

writes FOLDER/KIND/tokenizer.json and cases.json (text, tokens, and with the template's tokens around them; what decoding
gives if that is not the text). The tree has 200 texts a kind; tests/text/tokenizer.c FOLDER/KIND... compares any number."""
import argparse
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The sea was calm, and the ship's crew couldn't see land. It's 1,234 miles; they'd sailed 5678 of them!",
    "Der Mond über dem Fluß schien 2024 hell. Größere Schiffe fuhren vorüber, ohne anzuhalten.",
    "L'été dernier, nous n'avons pas vu la mer. C'était très étrange : il faisait 12,5 °C à midi…",
    "Москва слезам не верит, а Волга впадает в Каспийское море. 150 000 человек.",
    "海は静かで、船は港を出た。東京タワーの高さは333メートルです。カタカナとひらがな。",
    "天气很好，我们去海边散步。二〇二四年，北京有2184万人口。",
    "바다는 잔잔했고 배는 항구를 떠났다. 대한민국의 수도는 서울이다.",
    "كان البحر هادئا والسفينة في الميناء. ٢٠٢٤ سنة.",
    "समुद्र शांत था और जहाज बंदरगाह में था। नमस्ते दुनिया १२३",
    "ทะเลสงบและเรืออยู่ในท่าเรือ สวัสดีชาวโลก",
    "Η θάλασσα ήταν ήρεμη. Ελληνικά, ΚΕΦΑΛΑΙΑ και πεζά.",
    "def main(argc, argv):\n    for i in range(10):\n        print(f\"{i:03d}\", end='\\n')\n\treturn 0  # HTTPServer fooBar XMLHttpRequest\n",
    "{\"key\": [1, 22, 333, 4444], \"url\": \"https://example.org/a/b?c=d&e=f\"} <html><body>&nbsp;</body></html>",
    "I'LL we'Ve DON'T 'tis rock'n'roll   three   spaces\t\ttabs\r\n\r\nlines\n\n\nend",
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{ENDS}|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{ENDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TIKTOKEN = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
CHAT = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]


def level(**more):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **more})


def cut_by(expression, **more):
    return pre_tokenizers.Split(Regex(expression), **{"behavior": "isolated", **more})


def of_bytes(pre, special=CHAT, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=520, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return t


def begun(t, token):
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, t.token_to_id(token))])])
    return t


def of_characters(normalizer, pre, special=("<unk>", "<s>", "</s>"), strip=True):
    """Like SentencePiece's: bytes as <0xNN>, merges of characters."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer, t.pre_tokenizer = normalizer or normalizers.Sequence([]), pre or pre_tokenizers.Metaspace(split=True)
    letters = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEIOTS.,'!0123456789▁äöüßéèаеионтсряλ海の我바다\n"]
    t.train_from_iterator([line[:200] for line in CORPUS[:11]] * 3, trainers.BpeTrainer(vocab_size=420, special_tokens=[*special, *(f"<0x{b:02X}>" for b in range(256))], initial_alphabet=letters, limit_alphabet=len(letters), show_progress=False))
    tree = json.loads(t.to_str())
    tree["added_tokens"] = [a for a in tree["added_tokens"] if not a["content"].startswith("<0x")]
    for part in ("normalizer", "pre_tokenizer"):
        tree[part] = tree[part] if {"normalizer": normalizer, "pre_tokenizer": pre}[part] else None
    t = Tokenizer.from_str(json.dumps(tree))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if strip else []))
    token = special[1]
    t.post_processor = processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=[(token, t.token_to_id(token))])
    return t


def added():
    t = of_bytes(pre_tokenizers.Sequence([cut_by(QWEN2), level()]))
    t.normalizer = normalizers.NFC()
    t.add_tokens([AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False),
                  AddedToken("word", single_word=True, normalized=True), AddedToken("Москва", single_word=True, normalized=False), AddedToken("é!", normalized=True), AddedToken("    ", normalized=True), AddedToken("  ", normalized=True)])
    return t


KINDS = {
    "llama3": lambda: begun(of_bytes(pre_tokenizers.Sequence([cut_by(LLAMA3), level()]), ignore_merges=True), CHAT[0]),
    "qwen35": lambda: of_bytes(pre_tokenizers.Sequence([cut_by(QWEN35), level()])),
    "tekken": lambda: begun(of_bytes(pre_tokenizers.Sequence([cut_by(TEKKEN), level()]), ignore_merges=True), CHAT[0]),
    "o200k": lambda: of_bytes(pre_tokenizers.Sequence([cut_by(O200K, behavior="removed", invert=True), level()])),
    "tiktoken": lambda: of_bytes(pre_tokenizers.Sequence([cut_by(TIKTOKEN), level()])),
    "falcon": lambda: of_bytes(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), level(use_regex=True), pre_tokenizers.Digits(False), cut_by("[0-9][0-9][0-9]")]), special=["<|endoftext|>", ">>TITLE<<"]),
    "digits": lambda: of_bytes(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(use_regex=True, add_prefix_space=True)])),
    "cut": lambda: of_bytes(pre_tokenizers.Sequence([cut_by(r"[\r\n]"), cut_by(r"\s?\p{L}+"), cut_by(r"\s?\p{P}+", behavior="merged_with_previous"), cut_by(r"[一-龥ࠀ-一가-퟿]+", behavior="merged_with_next"), cut_by(r"\d{1,2}", behavior="contiguous"), level()])),
    "llama": lambda: of_characters(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "codestral": lambda: of_characters(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "metaspace": lambda: of_characters(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True), special=("<unk>", "<|startoftext|>", "<|endoftext|>")),
    "gemma": lambda: of_characters(normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), special=("<pad>", "<bos>", "<unk>"), strip=False),
    "added": added,
}

FIXED = ["", " ", "  ", "\n", "\r\n", "a", " a", "a ", "  a  b", "\t\tx", "It's we've 'S don't I'LL", "x1234 56!?\n\n y", "HTTPServer fooBar XMLHttpRequestABC", "ÀÉÎ àéî ǅ ʰʱ", "한ᆧ가ᆧᆨ각", "각 ᄒ", "e\u0301x\u0323\u0301", "नमस्ते", "a\u0301b ́c !́d",
         "👩‍👩‍👧‍👦🏽 ok", "１２３ ²³¹½ Ⅷ ٣٤", "<|im_start|>user\nhi<|im_end|>", "a <left>b<right> c <mask> d", "word words word. sword word", "Москва Москвач Москва.", "▁a ▁ b", "<0x41><unk>", "a/b//\n/c", "'ſa Kelvin K", "\u180e\u2003\u00a0\u0085x"]
RANGES = [(0x20, 0x7f), (0x20, 0x7f), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x980), (0xe00, 0xe80), (0x1100, 0x1200), (0x2000, 0x2070), (0x2070, 0x2200), (0x3040, 0x3100), (0x4e00, 0x9fa6), (0xac00, 0xd7a4), (0xff00, 0xfff0), (0x1f300, 0x1f650), (0x20000, 0x2a6d0)]
WORDS = " ".join(CORPUS).split(" ") + ["'s", "'LL", "n't", "123", "4567", "\n", "\r\n", "\t", "  ", "   ", "!!", "...", "<|im_end|>", "<mask>", "<left>", "<right>", "word", "</s>", "<s>", "A", "ABC", "éé", "한ᆧ"]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        what = rng.random()
        if what < 0.5:
            parts.append(rng.choice(WORDS))
        elif what < 0.8:
            low, high = rng.choice(RANGES)
            parts.append("".join(c for c in (chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 6))) if unicodedata.category(c) != "Cn"))
        else:
            parts.append(rng.choice(" \n\t\r'’.,/-_0123456789¼é\u0301\u200d\u3000▁") * rng.randint(1, 4))
        if rng.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


def cases(t, n, rng):
    for text in FIXED + [line for line in CORPUS] + [random_text(rng) for _ in range(n - len(FIXED) - len(CORPUS))]:
        ids, whole = t.encode(text, add_special_tokens=False).ids, t.encode(text).ids
        decoded = t.decode(ids, skip_special_tokens=False)
        yield {"text": text, "ids": ids, **({"whole": whole} if whole != ids else {}), **({"decoded": decoded} if decoded != text else {})}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--texts", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("kinds", nargs="*")
    o = p.parse_args()
    for kind in o.kinds or KINDS:
        t, path = KINDS[kind](), o.folder / kind
        path.mkdir(parents=True, exist_ok=True)
        (path / "tokenizer.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        (path / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases(t, o.texts, random.Random(f"{kind} {o.seed}"))) + "\n]\n")


sys.exit(main())
