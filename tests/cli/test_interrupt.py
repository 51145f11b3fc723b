"""Ctrl-C during an answer."""

from __future__ import annotations

import signal
import threading

import pytest

from kaishu.cli.interrupt import stop_on_interrupt


def test_the_first_interrupt_is_a_request_and_the_second_breaks_in():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        assert not stop.is_made
        signal.raise_signal(signal.SIGINT)
        assert stop.is_made
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_old_handler_comes_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError), stop_on_interrupt():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_that_may_not_set_handlers_goes_without():
    made = []

    def work():
        with stop_on_interrupt() as stop:
            made.append(stop.is_made)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert made == [False]


def test_where_nothing_can_be_left_in_disorder_the_first_breaks_in():
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt(at_once=True) as stop:
        assert not stop.is_made
        signal.raise_signal(signal.SIGINT)
