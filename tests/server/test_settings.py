"""What a server may be told, and what it says to values that make no sense."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from kaishu.errors import InvalidParameterError
from kaishu.server.settings import ServerSettings, is_loopback

WHOLE = ("max_body_bytes", "max_messages", "max_waiting", "max_running", "sequences")
LIMITS = ("key_requests_per_minute", "key_concurrent_requests")
SECONDS = ("request_timeout_s", "queue_timeout_s", "body_timeout_s", "send_timeout_s", "drain_s")


def test_by_default_only_this_machine_can_connect_and_nothing_is_open():
    settings = ServerSettings()
    assert settings.is_local and settings.host == "127.0.0.1"
    assert settings.cors_origins == settings.allowed_hosts == () and not settings.log_prompts and not settings.strict


def test_they_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ServerSettings().port = 1


@pytest.mark.parametrize(
    "name, values",
    [
        ("port", [-1, 65_536, "8000", 1.0, True, None]),
        *((name, [0, -1, 1.5, True, None, "5", math.inf]) for name in WHOLE),
        *((name, [0, -1, 1.5, True, "5"]) for name in LIMITS),
        *((name, [0, -1.0, math.nan, math.inf, True, None, "5"]) for name in SECONDS),
        ("log_format", ["xml", None, ""]),
        (
            "cors_origins",
            [(one,) for one in ("", "a.b", "https://a.b/", "https://a.b/x", "https://A.b", "https://", "null")],
        ),
        ("allowed_hosts", [(one,) for one in ("", "*", "*.a.b", "http://a.b", "a.b/x", "a b", "a:b", "ä.b")]),
        ("tls_key", [Path("key.pem")]),
        ("tls_certificate", [Path("certificate.pem")]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, values):
    for value in values:
        with pytest.raises(InvalidParameterError) as caught:
            ServerSettings(**{name: value})
        named = {"tls_key": "tls_certificate", "tls_certificate": "tls_key"}.get(name, name)
        assert caught.value.field == named and named in caught.value.message


def test_the_ends_of_the_ranges_are_allowed():
    ServerSettings(port=0, log_format="json", tls_key=Path("a"), tls_certificate=Path("b"))
    ServerSettings(port=65_535, **dict.fromkeys((*WHOLE, *LIMITS), 1), **dict.fromkeys(SECONDS, 0.001))
    ServerSettings(**dict.fromkeys(LIMITS))
    ServerSettings(cors_origins=("*", "https://a.b", "http://localhost:3000", "http://[::1]:80", "app://obsidian.md"))
    ServerSettings(allowed_hosts=("a.b", "A_b:80", "10.0.0.7", "::1", "[::1]:80"))


def test_every_field_is_described():
    described = ServerSettings.__doc__ or ""
    assert [field.name for field in fields(ServerSettings) if field.name not in described] == []


@pytest.mark.parametrize(
    "host, is_local",
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("Localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host, is_local):
    assert is_loopback(host) is is_local
