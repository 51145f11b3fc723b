"""The tables of Anthropic's fields, against the types of Anthropic's own client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from anthropic import types
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params

from kaishu.errors import InvalidRequestError
from kaishu.openai_fields import UnknownFields
from kaishu.server.messages_fields import (
    BLOCKS,
    CACHE_CONTROL,
    COUNT_FIELDS,
    MESSAGE,
    MESSAGE_FIELDS,
    METADATA,
    OUTPUT_CONFIG,
    OUTPUT_FORMAT,
    THINKING,
    TOOL,
    TOOL_CHOICE,
    kind_of,
    members,
)

IN_HEADERS = dict.fromkeys(("betas", "workspace_id"))
WARNED_OF = dict.fromkeys(("billing_policy", "fallback_credit_token"))  # of beta versions: who pays, and how


@pytest.mark.parametrize(
    ("table", "theirs"),
    [
        ({**MESSAGE_FIELDS, "workspace_id": None}, message_create_params.MessageCreateParamsStreaming),
        (MESSAGE_FIELDS | IN_HEADERS | WARNED_OF, beta_create_params.MessageCreateParamsBase),
        ({**COUNT_FIELDS, "workspace_id": None}, message_count_tokens_params.MessageCountTokensParams),
        (MESSAGE, types.UserMessageParam),
        (BLOCKS["text"], types.TextBlockParam),
        (BLOCKS["tool_use"], types.ToolUseBlockParam),
        (BLOCKS["tool_result"], types.ToolResultBlockParam),
        (BLOCKS["thinking"], types.ThinkingBlockParam),
        (BLOCKS["redacted_thinking"], types.RedactedThinkingBlockParam),
        (TOOL, types.ToolParam),
        (TOOL_CHOICE["auto"], types.ToolChoiceAutoParam),
        (TOOL_CHOICE["any"], types.ToolChoiceAnyParam),
        (TOOL_CHOICE["tool"], types.ToolChoiceToolParam),
        (TOOL_CHOICE["none"], types.ToolChoiceNoneParam),
        (THINKING["enabled"], types.ThinkingConfigEnabledParam),
        (THINKING["adaptive"], types.ThinkingConfigAdaptiveParam),
        (THINKING["disabled"], types.ThinkingConfigDisabledParam),
        (METADATA, types.MetadataParam),
        (OUTPUT_CONFIG, types.OutputConfigParam),
        (OUTPUT_FORMAT, types.JSONOutputFormatParam),
        (CACHE_CONTROL, types.CacheControlEphemeralParam),
    ],
)
def test_every_field_that_the_client_can_send_has_its_place(table: Mapping[str, Any], theirs: type) -> None:
    assert set(get_type_hints(theirs)) <= set(table)


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        ([], "x[1]", "allowed: an object"),
        ({"type": "text", "txt": ""}, "x[1].txt", 'There is no field "txt" in'),
        ({"type": "text", "citations": [{}]}, "x[1].citations", "Write what is cited"),
        ({"type": "text", "cache_control": {"type": "other"}}, "x[1].cache_control.type", '"ephemeral"'),
        ({"type": "text", "cache_control": "ephemeral"}, "x[1].cache_control", "allowed: an object"),
    ],
)
def test_what_is_wrong_inside_an_object_is_named_with_its_place(value: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        members(value, "x[1]", BLOCKS["text"], UnknownFields())
    assert found.value.field == field and words in str(found.value) and "x[1]" in str(found.value)


def test_keys_that_an_object_does_not_have_are_noted_with_their_places() -> None:
    unknown = UnknownFields(are_allowed=True)
    block = {"type": "text", "text": "a", "txt": None, "cache_control": {"type": "ephemeral", "size": 1}}
    assert members(block, "x[1]", BLOCKS["text"], unknown) == {"type": "text", "text": "a"}
    assert unknown.places == ["x[1].txt", "x[1].cache_control.size"]


def test_cache_control_is_checked_and_changes_nothing() -> None:
    block = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "citations": None}
    assert members(block, "x", BLOCKS["text"], UnknownFields()) == {"type": "text", "text": "a"}


@pytest.mark.parametrize("value", [None, "text", {}, {"type": 1}, {"type": "image"}])
def test_an_object_of_another_type_is_refused_with_the_types_that_there_are(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as found:
        kind_of(value, "x", ("text", "thinking"))
    assert found.value.field in ("x", "x.type") and "x" in found.value.message
