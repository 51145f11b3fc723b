"""Text to ids and back, with control tokens kept apart from text that only looks like them.

Owns the meaning of tokenizer.json and the few fields of tokenizer_config.json that concern ids; decoding by bytes.
Refuses to guess: only byte-level tokenizers (Qwen, Llama 3, SmolLM) are read, others are an error. Knows nothing of
chat messages; what a template wrote arrives as a RenderedPrompt.
Opened by text_files.py from a model's folder, or by gguf_tokenizer.py; ids go to the engine, ids come back from it one
at a time.

A control token is any added token of the tokenizer, special or not: `<|im_end|>`, but also `<think>`. The library
matches them anywhere in a text, so text that a user typed would become control ids. Ordinary text therefore takes the
library's own steps one by one (normalise, split, merge), which never look at added tokens.

Qwen's tokenizer normalises to NFC: ordinary text decodes back to its NFC form, not always to the characters typed.
"""

from __future__ import annotations

import codecs
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kaishu.errors import InvalidParameterError, InvalidRequestError, TokenizerError, and_more, shown
from kaishu.json_fields import read_json_object
from kaishu.text.encodable import find_unencodable
from kaishu.text.ordinary_text import OrdinaryText

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library

    from kaishu.text.template import RenderedPrompt

# In a run of white space the library's search for words takes back up to two steps for each character; at 10 million it
# panics. The longest contexts hold less text than this.
MAX_TEXT_CHARACTERS = 4_000_000


class Tokenizer:
    """One model's tokenizer. Immutable after loading; safe to share between threads.

    control_tokens: every added token, content to id
    special_token_ids: those control tokens that are marked special: structure, not text (`<think>` isn't marked)
    eos_token_ids:  what the tokenizer files say ends a turn; config.json and generation_config.json may add to it
    bos_token_id:   the token that starts a text, if the files name one
    pad_token_id:   the token that fills, if the files name one
    """

    control_tokens: Mapping[str, int]
    special_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    pad_token_id: int | None

    def __init__(self, library: Library, config: Mapping[str, Any], *, end_token_ids: Collection[int] = ()) -> None:
        """Wrap a loaded tokenizer. `config` is the content of tokenizer_config.json, or empty.

        end_token_ids: what ends a turn beside the config's eos_token
        raises:        TokenizerError when it isn't byte-level, or the config names tokens that it doesn't have
        """
        _require_byte_level(library)
        _add_missing_tokens(library, config)
        library.no_truncation()
        library.no_padding()
        added: dict[int, AddedToken] = library.get_added_tokens_decoder()
        self._library = library
        self._added = added
        self._control_ids = frozenset(added)
        self._bytes_of_letter = _bytes_of_letters()
        without_token = [byte for letter, byte in self._bytes_of_letter.items() if library.token_to_id(letter) is None]
        self._bytes_without_token = bytes(without_token)
        # The longest first: where one control token begins like another, the longer one is meant.
        contents = sorted((token.content for token in added.values()), key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, contents)) or r"(?!)")
        self.control_tokens = MappingProxyType({token.content: token_id for token_id, token in added.items()})
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        eos = self._named(config, "eos_token")
        self.eos_token_ids = frozenset(end_token_ids).union(() if eos is None else (eos,))
        self.bos_token_id = self._named(config, "bos_token")
        self.pad_token_id = self._named(config, "pad_token")
        self._ordinary = OrdinaryText(library, self._control_ids)
        self._first_ids = self._ids_before_text(config.get("add_bos_token"))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and, if there is one, tokenizer_config.json.

        raises: TokenizerError when a file is missing, damaged, or describes what we don't read
        """
        from tokenizers import Tokenizer as Library

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{folder} has no tokenizer.json.",
                hint="Download the model's tokenizer.json (and tokenizer_config.json) into that folder.",
            )
        try:
            library = Library.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for anything it can't read
            raise TokenizerError(
                f"{path} can't be read as a tokenizer: {error}.", hint="Download it again; it may have been cut short."
            ) from error
        return cls(library, read_tokenizer_config(folder))

    @cached_property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows: its highest id + 1. The embedding may have more rows."""
        return 1 + max(self._known_ids, default=-1)

    def ids_without_token(self, rows: int) -> list[int]:
        """Which of the ids 0 to rows - 1 have no token: a model may score them, nothing may sample them."""
        known = self._known_ids
        return [token_id for token_id in range(rows) if token_id not in known]

    @cached_property
    def _known_ids(self) -> range | set[int]:
        """The ids that have a token. If there are n tokens and every id below n has one, then those are all of them; to
        ask for each takes half as long as to copy the table, and nearly every tokenizer is like that."""
        count = self._library.get_vocab_size(with_added_tokens=True)
        if None not in map(self._library.id_to_token, range(count)):
            return range(count)
        return set(self._library.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str, *, allow_control: bool = False) -> list[int]:
        """Encode a text as it stands, for raw completion.

        text:          any text; what looks like a control token stays ordinary text
        allow_control: let control tokens in the text be control tokens, as other libraries always do
        return:        ids, starting with those that the tokenizer puts before every text (Llama 3: its begin token;
                       Qwen: none). What it would put after a text is left out: an end token would end the text.
        raises:        InvalidRequestError when the text has a lone surrogate, which no encoding can carry, or more than
                       MAX_TEXT_CHARACTERS
        """
        check_text(text, field="text", bytes_without_token=self._bytes_without_token)
        with _panics_named("text"):
            if allow_control:
                return [*self._first_ids, *self._library.encode(text, add_special_tokens=False).ids]
            return [*self._first_ids, *self._ordinary.encode(text)]

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Encode a rendered chat: control ids exactly where the template wrote a control token, text elsewhere.

        Adds nothing: where a model wants a begin token, its template writes it. A control token counts even where
        the normaliser would have merged its last letter with a combining mark that follows.

        raises: InvalidRequestError, as `encode`
        """
        check_text(prompt.text, field="prompt", bytes_without_token=self._bytes_without_token)
        ids: list[int] = []
        done = 0
        with _panics_named("prompt"):
            for start, end, token_id in self._control_spans(prompt.text, prompt.outside):
                ids += self._ordinary.encode(prompt.text[done:start])
                ids.append(token_id)
                done = end
            return ids + self._ordinary.encode(prompt.text[done:])

    def ids_after_text(self) -> list[int]:
        """What tokenizer.json's post-processor puts after every text (Qwen3-Embedding: an end token); often nothing."""
        probe = self._library.encode("a", add_special_tokens=True)
        return list(probe.ids[len(probe.ids) - probe.special_tokens_mask[::-1].index(0) :])

    def as_json(self) -> str:
        """The content of a tokenizer.json that says the same."""
        return str(self._library.to_str(pretty=True))

    def decode(self, ids: Sequence[int], *, skip_control: bool = False) -> str:
        """Join the tokens' bytes and read them as UTF-8; bytes that aren't become U+FFFD, one for each bad sequence.

        skip_control: leave out control tokens
        raises:       TokenizerError naming ids that the tokenizer doesn't have, InvalidRequestError where `ids` isn't a
                      list of whole numbers
        """
        return b"".join(self._bytes_of(_checked_ids(ids), skip_control)).decode("utf-8", errors="replace")

    def decoder(self, *, hidden: Collection[int] = ()) -> IncrementalDecoder:
        """A decoder for one stream of ids. hidden: ids that leave no text."""
        return IncrementalDecoder(self, hidden=hidden)

    def token_bytes(self, token_id: int) -> bytes:
        """One token's own bytes; a character may need the bytes of several tokens.

        raises: TokenizerError when the tokenizer doesn't have the id, InvalidRequestError when it isn't a whole number
        """
        token_id = _checked_id(token_id, "token_id")
        added = self._added.get(token_id)
        if added is not None:
            return added.content.encode()
        token = self._token(token_id)
        if token is None:
            raise TokenizerError(
                f"The tokenizer has no token with id {shown(token_id)}; its ids end at {self.vocab_size - 1:,}."
            )
        try:
            return bytes(self._bytes_of_letter[letter] for letter in token)
        except KeyError:  # not written in the byte alphabet: the library takes such a token literally, and so do we
            return token.encode()

    def _token(self, token_id: int) -> str | None:
        return _token_of(self._library, token_id)

    def _bytes_of(self, ids: list[int], skip_control: bool) -> Iterator[bytes]:
        unknown = [shown(i) for i in ids if self._token(i) is None]
        if unknown:
            raise TokenizerError(
                f"The tokenizer has no token with id {and_more(unknown)}; its ids end at {self.vocab_size - 1:,}."
            )
        return (self.token_bytes(i) for i in ids if not (skip_control and i in self._control_ids))

    def _control_spans(self, text: str, outside: frozenset[int]) -> Iterator[tuple[int, int, int]]:
        """Where control tokens stand in `text`, as (start, end, id), unless it begins at a place in `outside`."""
        position = done = 0
        while match := self._control_pattern.search(text, position):
            position = match.start() + 1
            token_id = self.control_tokens[match[0]]
            token, start, end = self._added[token_id], match.start(), match.end()
            if start in outside or (token.single_word and _touches_word(text, start, end)):
                continue
            while token.lstrip and start > done and text[start - 1].isspace():  # it swallows the white space before it
                start -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            yield start, end, token_id
            position = done = end

    def _named(self, config: Mapping[str, Any], field: str) -> int | None:
        """The id of a token that the config names, as a string or as {"content": string}."""
        value = config.get(field)
        content = value.get("content") if isinstance(value, dict) else value
        if content is None:
            return None
        token_id = self._library.token_to_id(content) if isinstance(content, str) else None
        if token_id is None:
            raise TokenizerError(
                f"tokenizer_config.json says {field} is {content!r}, which tokenizer.json doesn't have.",
                hint="The two files belong to different models; download both from the same place.",
            )
        return token_id

    def _ids_before_text(self, add_bos: object) -> list[int]:
        """What stands before every text: as add_bos_token says, else as tokenizer.json's post-processor does."""
        if add_bos is not None:
            return [self.bos_token_id] if add_bos and self.bos_token_id is not None else []
        probe = self._library.encode("a", add_special_tokens=True)
        return list(probe.ids[: probe.special_tokens_mask.index(0)])


class IncrementalDecoder:
    """Text as its ids arrive: what is given out never changes later, and adds up to `Tokenizer.decode` of all ids.

    A character whose bytes are spread over several tokens is held back until its last byte is there.
    """

    def __init__(self, tokenizer: Tokenizer, *, hidden: Collection[int] = ()) -> None:
        """hidden: ids that leave no text, such as end tokens"""
        self._tokenizer = tokenizer
        self._hidden = frozenset(hidden)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; may be empty. Raises TokenizerError when the id is unknown."""
        if token_id in self._hidden:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is still held back: U+FFFD when the ids end inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)


def check_text(text: str, *, field: str, bytes_without_token: bytes = b"") -> None:
    """Refuse what can't be encoded.

    bytes_without_token: bytes that the library would drop without a word (SmolLM's has none for U+0004, for example)
    raises: InvalidRequestError when `text` isn't a string, is longer than MAX_TEXT_CHARACTERS, has a lone surrogate or
            a character that the model can't read
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"{field} is a {type(text).__name__}; allowed: a string.", field=field)
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidRequestError(
            f"{field} has {len(text):,} characters; allowed: {MAX_TEXT_CHARACTERS:,}.",
            field=field,
            hint="No model's context holds so much; give it in parts.",
        )
    wrong = find_unencodable(text, bytes_without_token)
    if wrong is not None:
        raise InvalidRequestError(f"{field} has {wrong.found} and can't be encoded.", field=field, hint=wrong.hint)


@contextmanager
def _panics_named(field: str) -> Iterator[None]:
    """The library panics where its search for words gives up: no Exception, but what was asked is at fault."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a type that can't be imported
            raise
        raise InvalidRequestError(
            f"{field} has a run of characters that the tokenizer can't cut into words: {error}.",
            field=field,
            hint="It usually is a very long run of white space; shorten it.",
        ) from None


def _checked_ids(ids: object) -> list[int]:
    """Token ids as a list, so that an iterator isn't used up on the way."""
    try:
        given = None if isinstance(ids, str | bytes) else list(ids)  # type: ignore[call-overload]
    except TypeError:
        given = None
    if given is None:
        raise InvalidParameterError("ids", ids, "a list of token ids")
    return [_checked_id(token_id, f"ids[{i}]") for i, token_id in enumerate(given)]


def _checked_id(token_id: object, field: str) -> int:
    """A whole number of any type, numpy's too."""
    try:
        if not isinstance(token_id, bool):
            return operator.index(token_id)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise InvalidParameterError(field, token_id, "a token id, which is a whole number")


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, or {} where there is none. Raises TokenizerError when it is damaged."""
    path = folder / "tokenizer_config.json"
    return read_json_object(path, TokenizerError) if path.is_file() else {}


def _token_of(library: Library, token_id: int) -> str | None:
    return library.id_to_token(token_id) if 0 <= token_id < 2**32 else None


def _require_byte_level(library: Library) -> None:
    state = b"" if library.decoder is None else bytes(library.decoder.__getstate__())
    if b'"ByteLevel"' not in state:
        kind = type(library.decoder).__name__ if library.decoder is not None else "none"
        raise TokenizerError(
            f"The tokenizer isn't byte-level (its decoder: {kind}).",
            hint="Kaishu reads byte-level tokenizers: those of Qwen2, Qwen3, Llama 3 and SmolLM.",
        )


def _add_missing_tokens(library: Library, config: Mapping[str, Any]) -> None:
    """Older folders list some added tokens in tokenizer_config.json alone."""
    from tokenizers import AddedToken

    try:
        listed = {int(key): dict(fields) for key, fields in (config.get("added_tokens_decoder") or {}).items()}
        flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
        tokens = {
            token_id: AddedToken(fields["content"], **{flag: fields[flag] for flag in flags if flag in fields})
            for token_id, fields in sorted(listed.items())
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(
            f"tokenizer_config.json has an added_tokens_decoder that isn't a table of tokens: {error!r}."
        ) from error
    for token_id, token in tokens.items():
        if _token_of(library, token_id) is None:
            library.add_tokens([token])
        if library.token_to_id(token.content) != token_id:
            raise TokenizerError(
                f"tokenizer_config.json gives {token.content!r} the id {token_id}, "
                f"tokenizer.json the id {library.token_to_id(token.content)}.",
                hint="The two files belong to different models; download both from the same place.",
            )


def _bytes_of_letters() -> dict[str, int]:
    """The byte alphabet of GPT-2 (Radford et al., 2019): which printable letter stands for which byte.

    Bytes that are printable in Latin-1 stand for themselves; the other 68 take the letters from U+0100 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _touches_word(text: str, start: int, end: int) -> bool:
    return any(re.match(r"\w", neighbour) for neighbour in (text[max(start - 1, 0) : start], text[end : end + 1]))
