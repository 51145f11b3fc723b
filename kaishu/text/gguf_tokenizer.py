"""The tokenizer that a GGUF file carries in its metadata: tokens, their kinds, merges, the name of a splitting rule.

Owns the meaning of the keys tokenizer.ggml.* (GGUF's specification, "Tokenizer"), and of the four names of rules that
we read: such a file names the rule by which text is cut into words, but doesn't hold it. Refuses to guess: a name that
isn't here is an error, since a wrong rule gives other ids, silently. Knows nothing of the file's format; it's given
plain values.
Metadata comes from checkpoint/gguf.py, by way of text_files.py; the result is a Tokenizer like any other.

`scores` and `add_eos_token` aren't read: merges have their order, and what stands after a text is never added. Kinds
of tokens: control and unknown ones become control tokens that are special, user-defined ones control tokens that
aren't (`<think>`). Unused ones only fill the embedding up and get no token, so that nothing samples them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kaishu.errors import TokenizerError, and_more, shown
from kaishu.json_fields import JsonFields
from kaishu.text.encodable import find_unencodable
from kaishu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

Rule = Callable[[], "tuple[Normalizer | None, PreTokenizer]"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

# What ends a turn or a text in the families that we read. Files name one end token, chat models often have two.
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

# Every Qwen since Qwen2 has one rule, so their older files, which name none, are read too.
_QWEN_ARCHITECTURES = ("qwen2", "qwen2moe", "qwen3", "qwen3moe")
_UNNAMED = ("default", "")  # what programs write that don't know the model's rule
_OTHERS_HINT = (
    "Kaishu reads the tokenizers of Qwen2, Qwen3, Llama 3 and SmolLM; "
    "for another one use the model's Hugging Face folder, if its tokenizer.json is byte-level."
)


def tokenizer_from_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Build the tokenizer that the metadata describe.

    metadata: keys and values of a GGUF file; token_type as a list or an array of whole numbers
    where:    the file, for messages
    raises:   TokenizerError naming the key that is missing, contradicts another or asks for what we don't read
    """
    from tokenizers import AddedToken

    fields = JsonFields(metadata, where, TokenizerError)
    rule = _rule(fields)  # first, because a model of another kind lacks the other keys
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    kinds = _kinds(fields, len(tokens))
    library = _library(fields, tokens, kinds, rule)
    controls = [i for i, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    library.add_tokens([AddedToken(tokens[i], special=kinds[i] != USER_DEFINED, normalized=False) for i in controls])
    ids = {name: _token_id(fields, name, kinds) for name in ("bos", "eos", "padding", "eot", "eom")}
    begins = fields.boolean("tokenizer.ggml.add_bos_token", rule is _llama and ids["bos"] is not None)
    if begins and ids["bos"] is None:
        raise TokenizerError(
            f"{where}: tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing."
        )
    config = {
        name: None if token_id is None else tokens[token_id]
        for name, token_id in (("bos_token", ids["bos"]), ("eos_token", ids["eos"]), ("pad_token", ids["padding"]))
    }
    ends = [token_id for token_id in (ids["eot"], ids["eom"]) if token_id is not None]
    ends += [i for i in controls if tokens[i] in END_TOKENS]
    return Tokenizer(library, {**config, "add_bos_token": begins}, end_token_ids=ends)


def _rule(fields: JsonFields) -> Rule:
    """The rule that the file names, or that its family implies."""
    model, name = "tokenizer.ggml.model", "tokenizer.ggml.pre"
    if not fields.has(model):
        raise fields.missing(model, hint="The file has no tokenizer; use one that does, or a Hugging Face folder.")
    if not _is_one_of(fields.values[model], ("gpt2",)):
        raise fields.wrong(model, '"gpt2", which is byte-level BPE', hint=_OTHERS_HINT)
    value = fields.values.get(name)
    if value is None or _is_one_of(value, _UNNAMED):
        value = "qwen2" if _is_one_of(fields.values.get("general.architecture"), _QWEN_ARCHITECTURES) else value
    if value is None:
        raise fields.missing(name, hint="Convert the model again with a newer program, which writes it.")
    if not _is_one_of(value, _RULES):
        raise fields.wrong(name, ", ".join(_RULES), hint=_OTHERS_HINT)
    return _RULES[value]


def _is_one_of(value: object, words: Collection[str]) -> bool:
    return isinstance(value, str) and value in words


def _library(fields: JsonFields, tokens: list[str], kinds: list[int], rule: Rule) -> Library:
    """The tokenizers library's object: everything but the control tokens."""
    from tokenizers import Tokenizer as Library
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE

    vocabulary, merges = _vocabulary(fields, tokens, kinds), _merges(fields)
    try:
        # Llama 3 takes a word that is a token as it is, even if no merges lead there.
        model = BPE(vocabulary, merges, ignore_merges=rule is _llama)
    except Exception as error:  # the library raises plain Exception; it names a token that a merge lacks
        raise TokenizerError(
            f"{fields.source}: tokenizer.ggml.merges don't fit tokenizer.ggml.tokens: {error}.",
            hint="The file is damaged or was converted by a faulty program; get it from another place.",
        ) from error
    library = Library(model)
    normalizer, library.pre_tokenizer = rule()
    if normalizer is not None:
        library.normalizer = normalizer
    library.decoder = ByteLevel()
    return library


def _strings(fields: JsonFields, name: str) -> list[str]:
    value = fields.values.get(name)
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise TokenizerError(f"{fields.source}: {name} isn't a list of strings.")
    wrong = find_unencodable("".join(value))
    if wrong is not None:
        raise TokenizerError(f"{fields.source}: {name} has {wrong.found} of all its strings in a row.", hint=wrong.hint)
    return value


def _kinds(fields: JsonFields, num_tokens: int) -> list[int]:
    """Each token's kind. Bytes (6) are refused: in a byte-level vocabulary each byte has a letter of its own."""
    name = "tokenizer.ggml.token_type"
    value = fields.values.get(name)
    if value is None:
        raise fields.missing(name)
    kinds = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(kinds, list) or not set(map(type, kinds)) <= {int}:
        raise TokenizerError(f"{fields.source}: {name} isn't a list of whole numbers.")
    if len(kinds) != num_tokens:
        raise TokenizerError(
            f"{fields.source}: {name} has {len(kinds):,} entries, tokenizer.ggml.tokens {num_tokens:,}; "
            "allowed: one for each token."
        )
    strange = sorted(set(kinds) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED})
    if strange:
        raise TokenizerError(
            f"{fields.source}: {name} has {and_more([shown(kind) for kind in strange])} (first for token "
            f"{kinds.index(strange[0]):,}); allowed: 1 to 5 (normal, unknown, control, user-defined, unused)."
        )
    return kinds


def _vocabulary(fields: JsonFields, tokens: list[str], kinds: list[int]) -> dict[str, int]:
    """Token to id, for those that are used."""
    used = {token: i for i, token in enumerate(tokens) if kinds[i] != UNUSED}
    if "" in used:
        raise TokenizerError(f"{fields.source}: tokenizer.ggml.tokens[{used['']}] is empty.")
    if len(used) != len(tokens) - kinds.count(UNUSED):
        first, again = next(
            (used[token], i) for i, token in enumerate(tokens) if kinds[i] != UNUSED and used[token] != i
        )
        raise TokenizerError(
            f"{fields.source}: tokenizer.ggml.tokens has {shown(tokens[first])} twice, as {again:,} and {first:,}."
        )
    return used


def _merges(fields: JsonFields) -> list[tuple[str, str]]:
    """Pairs of tokens, the first to be merged first. A space divides a pair: in tokens, spaces are another letter."""
    name = "tokenizer.ggml.merges"
    merges = _strings(fields, name)
    if not {merge.count(" ") for merge in merges} <= {1}:
        wrong = next(i for i, merge in enumerate(merges) if merge.count(" ") != 1)
        raise TokenizerError(
            f"{fields.source}: {name}[{wrong:,}] is {shown(merges[wrong])}; allowed: two tokens with a space between."
        )
    parts = " ".join(merges).split(" ")  # all at once, since there are 150,000 of them
    return list(zip(parts[::2], parts[1::2], strict=False))  # no merges at all are one empty part


def _token_id(fields: JsonFields, name: str, kinds: list[int]) -> int | None:
    """The id of the token that has a certain role, if the file names one."""
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = fields.optional_integer(key, 0, len(kinds) - 1)
    if token_id is not None and kinds[token_id] == UNUSED:
        raise fields.wrong(key, "the id of a token that is used")
    return token_id


def _qwen() -> tuple[Normalizer, PreTokenizer]:
    """Qwen2 and later: digits one by one; the only family here that normalises (Unicode NFC)."""
    from tokenizers.normalizers import NFC

    return NFC(), _words_with_regex(r"\p{N}")


def _llama() -> tuple[None, PreTokenizer]:
    """Llama 3: digits by threes."""
    return None, _words_with_regex(r"\p{N}{1,3}")


def _smollm() -> tuple[None, PreTokenizer]:
    """SmolLM: digits one by one, what is between them as GPT-2 does."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return None, Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _gpt() -> tuple[None, PreTokenizer]:
    """GPT-2 (Radford et al., 2019); the library has its rule inside."""
    from tokenizers.pre_tokenizers import ByteLevel

    return None, ByteLevel(add_prefix_space=False)


def _words_with_regex(digits: str) -> PreTokenizer:
    """The rule that GPT-4's tokenizer brought and others took over: a word is a contraction; letters with one other
    character before them; digits; other signs with line ends after them; line ends; white space but for the last one
    before a word; white space."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        digits,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
    return Sequence([Split(Regex("|".join(words)), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


_RULES: Mapping[str, Rule] = {
    "qwen2": _qwen,
    "llama-bpe": _llama,
    "llama3": _llama,
    "llama-v3": _llama,
    "smollm": _smollm,
    "gpt-2": _gpt,
}
