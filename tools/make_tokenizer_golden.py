#!/usr/bin/env python3
"""Writes the golden files of the tokenizer tests, with the package `tokenizers` as oracle.

Oracle: tokenizers 0.23.3 (pip install tokenizers==0.23.3 gguf==0.19.0).
Usage: make_tokenizer_golden.py small > tests/golden/tokenizer_small.txt
       make_tokenizer_golden.py real MODEL.gguf > tests/golden/tokenizer_smollm2.txt

Lines, with \\n, \\t, \\r and \\\\ escaped in texts:
  token TYPE TEXT                    the vocabulary, in order of ids (small only)
  merge LEFT RIGHT                   in order (small only)
  row SCHEME TEXT TAB ID ID ...      special tokens recognised
"""
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SCHEMES = ["gpt-2", "smollm", "llama-bpe", "qwen2"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

CORPUS = [
    "The engine gives its memory back when it sleeps, and takes it again when it wakes up.",
    "Hello world! It's what they've said: I'll do it, we'd do it, you're right, I'm here, don't.",
    "def main():\n    for index in range(10):\n        print(index)\n\n\nif __name__ == '__main__':\n    main()\n",
    "Die Größe der Bücher; où êtes-vous? ¿Qué pasó? Привет, как дела? 你好，世界。こんにちは 세계",
    "12345 678 90 3.14159 0x1F 2024-07-26 100% $5.00 a+b=c [x] {y} <z> e\u0301 n\u0303 🙂🙂 👩‍👩‍👧",
]

RUNS = [
    lambda r: "".join(r.choice("abcdefghijklmnopqrstuvwxyzABCDE") for _ in range(r.randrange(1, 8))),
    lambda r: "".join(r.choice("0123456789٣½Ⅷ") for _ in range(r.randrange(1, 6))),
    lambda r: " " * r.randrange(1, 5),
    lambda r: "".join(r.choice("\n\r\t \u00a0\u2003\u0085\x0b\x1c") for _ in range(r.randrange(1, 5))),
    lambda r: "".join(r.choice(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"'") for _ in range(r.randrange(1, 4))),
    lambda r: r.choice(["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'Ll", "'d", "'x", "''s", "'\u017f"]),
    lambda r: "".join(r.choice("你好世界日本語한국어") for _ in range(r.randrange(1, 4))),
    lambda r: "".join(r.choice("éüßøñçÅàПривет") for _ in range(r.randrange(1, 5))),
    lambda r: r.choice("aeno") + "".join(r.choice("\u0301\u0308\u0327\u0323") for _ in range(r.randrange(1, 4))),
    lambda r: r.choice(["🙂", "👩‍👩‍👧", "\ufeff", "\u200b", "\u0000", "\x7f", "\U0001d400", "\u1100\u1161", "\u2126", "\ufffd"]),
    lambda r: r.choice(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<tool>", "<tool>x", "<to", "Zebra", " Zebra"]),
    lambda r: r.choice(["The", " capital", " of", " France", " is", "Hello", " world", "def main():", "ing", " the"]),
]


def random_text(rng):
    return "".join(rng.choice(RUNS)(rng) for _ in range(rng.randrange(1, 9)))


FIXED = ["", " ", "  ", "\n", "a", "The capital of France is", "Hello world! 123", "don't DON'T I'LL we'Re",
         "  leading", "trailing  ", "a  b", "a \n b", "\n\n\n", " \n \n ", "x\r\n\r\ny", "12345678", " 1 22 333 4444",
         "a1b2", "e\u0301", "<|im_start|>user\nhi<|im_end|>\n", "....", " ...\n\n x", "aaaaaaaaaaaaaaaaaaaaaaaa"]


def build(scheme, tokens, types, merges):
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=scheme == "llama-bpe"))
    if scheme == "gpt-2":
        tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    elif scheme == "smollm":
        tokenizer.pre_tokenizer = pre.Sequence(
            [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)])
    else:
        pattern = Regex(LLAMA3 if scheme == "llama-bpe" else QWEN2)
        tokenizer.pre_tokenizer = pre.Sequence(
            [pre.Split(pattern, "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        if scheme == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    for token, type_ in zip(tokens, types):
        if type_ == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif type_ == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def write_rows(scheme, tokenizer, count, seed):
    rng = random.Random(seed)
    for text in FIXED + [random_text(rng) for _ in range(count)]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        print(f"row {scheme} {escape(text)}\t{' '.join(map(str, ids))}")


def small():
    import json
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [NORMAL] * len(tokens)
    merges = [tuple(m) for m in model["merges"]]
    # A word that no merge makes, and tokens that are not text.
    for token, type_ in [("Zebra", NORMAL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL),
                         ("<|endoftext|>", CONTROL), ("<tool>", USER_DEFINED), ("<tool>x", USER_DEFINED)]:
        tokens.append(token)
        types.append(type_)
    for token, type_ in zip(tokens, types):
        print(f"token {type_} {escape(token)}")
    for left, right in merges:
        print(f"merge {left} {right}")
    for scheme in SCHEMES:
        write_rows(scheme, build(scheme, tokens, types, merges), 250, scheme)


def real(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    merges = [tuple(m.split(" ")) for m in get("merges")]
    tokenizer = build(get("pre"), get("tokens"), get("token_type"), merges)
    write_rows(get("pre"), tokenizer, 1200, "real")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    print("# oracle: tokenizers", tokenizers.__version__)
    if sys.argv[1] == "small":
        small()
    else:
        real(sys.argv[2])
