"""`kaishu tokenize`: the ids are the tokenizer's; the pieces are readable and lose nothing."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.cli.main import main
from kaishu.cli.tokenize import parse_ids, readable
from kaishu.errors import InvalidParameterError


@pytest.fixture
def run(tiny_checkpoint, capsys):
    folder = str(tiny_checkpoint("dense_tied", with_tokenizer=True))

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["tokenize", folder, *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_each_token_is_shown_with_its_id_and_bytes_of_cut_characters_in_hex(run):
    lines = run("a中").splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[:4]] == ["'a'", "<e4>", "<b8>", "<ad>"]
    assert lines[-1] == "4 tokens, 2 characters, 4 bytes"


def test_control_tokens_are_text_unless_allowed_and_then_marked(run):
    assert "control" not in run("<|im_end|>")
    assert run("<|im_end|>", "--allow-control").splitlines()[0] == "258  <|im_end|>  control"


def test_an_id_that_no_tokenizer_has_is_an_error(tiny_checkpoint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tokenize", str(tiny_checkpoint("dense_tied", with_tokenizer=True)), "--ids", "9999999999"])
    assert ended.value.code == 2
    assert "no token with id 9999999999" in capsys.readouterr().err


def test_ids_are_decoded(run):
    ids = json.loads(run("a中", "--json"))["token_ids"]
    assert run("--ids", " ".join(map(str, ids))).endswith("\n\na中\n")


def test_json_agrees_with_the_tokenizers_library(run, tiny_checkpoint):
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tiny_checkpoint("dense_tied", with_tokenizer=True) / "tokenizer.json"))
    said = json.loads(run("Hi 楷书\n", "--json"))
    assert said["token_ids"] == library.encode("Hi 楷书\n").ids
    assert said["text"] == "Hi 楷书\n"
    assert bytes(byte for token in said["tokens"] for byte in token["bytes"]) == "Hi 楷书\n".encode()


def test_escape_sequences_in_decoded_text_are_shown_not_sent(run):
    ids = json.loads(run("\x1b[2J", "--json"))["token_ids"]
    assert "\x1b" not in run("--ids", ",".join(map(str, ids)))


@pytest.mark.parametrize("text", ["1 2 3", "1,2,3", "[1, 2, 3]", " 1\n2\t3 "])
def test_ids_may_be_separated_in_many_ways(text):
    assert parse_ids(text) == [1, 2, 3]


@pytest.mark.parametrize("text", ["-1", "1 x", "1.5", "²", "1" * 11, "9" * 5000])
def test_what_is_no_id_is_named(text):
    with pytest.raises(InvalidParameterError, match="--ids is"):
        parse_ids(text)


@given(st.binary(min_size=1, max_size=8))
def test_the_readable_form_loses_no_byte(raw):
    parts = re.findall(r"<([0-9a-f ]+)>|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", readable(raw))
    back = b"".join(bytes.fromhex(hexed) if hexed else eval(quoted).encode() for hexed, quoted in parts)
    assert back == raw
