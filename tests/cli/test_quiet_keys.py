"""What is typed while an answer streams."""

from __future__ import annotations

import io
import os
import pty
import termios

import pytest

from kaishu.cli.quiet_keys import quiet_keys


@pytest.fixture
def terminal():
    """A terminal: the end that a person types at (a file descriptor), and the program's standard input."""
    person, program = pty.openpty()
    with os.fdopen(program, "r") as stream:
        yield person, stream
    os.close(person)


def test_keys_are_not_echoed_and_wait_as_they_were_typed(terminal):
    person, stream = terminal
    with quiet_keys(stream):
        os.write(person, b"hi\r")
        assert os.read(stream.fileno(), 10) == b"hi\r"
    os.set_blocking(person, False)
    with pytest.raises(BlockingIOError):
        os.read(person, 10)  # nothing came back to the screen


def test_the_old_modes_come_back_after_an_error_too(terminal):
    _, stream = terminal
    before = termios.tcgetattr(stream)
    with pytest.raises(ValueError), quiet_keys(stream):
        assert termios.tcgetattr(stream) != before
        raise ValueError
    assert termios.tcgetattr(stream) == before


def test_ctrl_c_still_makes_a_signal(terminal):
    _, stream = terminal
    with quiet_keys(stream):
        assert termios.tcgetattr(stream)[3] & termios.ISIG


def test_what_is_no_terminal_is_left_alone():
    with quiet_keys(io.StringIO()):
        pass
