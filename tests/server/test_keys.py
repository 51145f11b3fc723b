"""API keys: read from a file and the environment, compared by digests, refused by where they stand."""

from __future__ import annotations

import hmac
import logging
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.errors import ConfigError
from kaishu.server import keys
from kaishu.server.keys import read_keys

FIRST, SECOND, THIRD = "first-key-0123456789", "second-key-0123456789", "third+key/0123456789=="


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_keys_come_from_the_file_and_from_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, f"# who may ask\n\nalice {FIRST}\n  {SECOND}   # nobody's in particular\r\n")
    found = read_keys(file, f" {THIRD} ,another-0123456789")
    assert len(found) == 4
    said = [found.name_of(key) for key in (FIRST, SECOND, THIRD, "another-0123456789")]
    assert said == ["alice", "line-4", "environment-1", "environment-2"]


def test_a_key_may_have_a_number_sign_within(tmp_path: Path) -> None:
    found = read_keys(written(tmp_path, f"alice {FIRST}#1 # not {FIRST}\n#{SECOND}\n\t# {SECOND}\n"))
    assert len(found) == 1 and found.name_of(f"{FIRST}#1") == "alice" and found.name_of(FIRST) is None


@pytest.mark.parametrize("said", ["", " ", FIRST[:-1], FIRST + " ", FIRST.upper(), "alice", "é" * 20, "\udcff" * 20])
def test_what_is_no_key_belongs_to_nobody(tmp_path: Path, said: str) -> None:
    assert read_keys(written(tmp_path, f"alice {FIRST}\n")).name_of(said) is None


def test_without_file_and_environment_there_are_no_keys() -> None:
    assert len(read_keys(None)) == len(read_keys(None, "  ")) == 0


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        (f"alice {FIRST}\nbob short-0123456789\nq tooshort\n", "line 3", "8 characters; allowed: 16"),
        ("x\n", "line 1", "1 character; allowed: 16"),
        (f"alice {FIRST}\n\n# again\nbob {FIRST}\n", "line 4", "as that of alice"),
        (f"alice {FIRST}\nalice {SECOND}\n", "line 2", "the name alice was there before"),
        (f"alice the second {FIRST}\n", "line 1", "4 words; allowed: `NAME KEY`"),
        (f"al\x1b[2Jice {FIRST}\n", "line 1", "the name has other characters"),
        ("alice schlüssel-0123456789\n", "line 1", "ASCII alone"),
        ("# nothing\n\n", "keys has no key", "secrets.token_urlsafe"),
        ("", "keys has no key", "secrets.token_urlsafe"),
    ],
)
def test_a_line_that_is_no_key_is_refused_by_its_number_and_never_shown(
    tmp_path: Path, text: str, where: str, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keys(written(tmp_path, text))
    said = str(caught.value)
    assert where in said and why in said
    assert not any(key in said for key in (FIRST, SECOND, "short-0123456789", "tooshort", "schlüssel", "\x1b"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (f"{FIRST},,{SECOND}", "KAISHU_API_KEYS, key 2 is empty"),
        (f"{FIRST},", "KAISHU_API_KEYS, key 2 is empty"),
        (f"{FIRST},{FIRST}", "KAISHU_API_KEYS, key 2: this key was there before, as that of environment-1"),
        (f"{FIRST}, two words-0123456789", "KAISHU_API_KEYS, key 2: a key may have"),
    ],
)
def test_a_key_of_the_environment_is_refused_by_its_number(said: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_keys(None, said)


def test_a_key_of_the_file_is_not_given_again_by_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KAISHU_API_KEYS, key 1: this key was there before, as that of alice"):
        read_keys(written(tmp_path, f"alice {FIRST}\n"), FIRST)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere can't be read: No such file"):
        read_keys(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="it isn't UTF-8"):
        (tmp_path / "keys").write_bytes(b"\xff" * 20)
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING, "kaishu.server"):
        read_keys(written(tmp_path, f"{FIRST}\n", mode))
    assert ("chmod 600" in caplog.text) == warns and FIRST not in caplog.text


def test_a_key_is_kept_nowhere_but_as_a_digest(tmp_path: Path) -> None:
    found = read_keys(written(tmp_path, f"alice {FIRST}\n"), SECOND)
    assert [sorted(vars(key)) for key in found._keys] == [["digest", "name"]] * 2
    assert all(len(key.digest) == 32 for key in found._keys)
    assert FIRST not in repr(vars(found)) and SECOND not in repr(vars(found))


def test_all_keys_are_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return hmac.compare_digest(one, other)

    found = read_keys(None, ",".join((FIRST, SECOND, THIRD)))
    monkeypatch.setattr(keys, "hmac", type("Counted", (), {"compare_digest": staticmethod(counted)}))
    for said in (FIRST, SECOND, THIRD, "nobody's"):
        compared.clear()
        found.name_of(said)
        assert len(compared) == 3


@given(st.lists(st.text(string.ascii_letters + string.digits + "-_", min_size=16, max_size=40), unique=True), st.data())
def test_each_key_is_its_own_and_no_other_text_is_one(made: list[str], data: st.DataObject) -> None:
    found = read_keys(None, ",".join(made))
    assert [found.name_of(key) for key in made] == [f"environment-{number + 1}" for number in range(len(made))]
    said = data.draw(st.text(max_size=40))
    assert (found.name_of(said) is not None) == (said in made)
