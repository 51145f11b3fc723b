"""The chat template: messages in, one prompt out.

Owns where a model's template is found, what it is given, and what is read off the rendered prompt: which characters
came from outside, and whether the model starts out thinking. What a message may be is in messages.py; what a template
may do, in sandbox.py; how outside text stays text, in provenance.py.
Opened by loading.py beside the tokenizer; the prompt goes to Tokenizer.encode_prompt and ChannelParser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaishu.errors import (
    InvalidMessagesError,
    InvalidParameterError,
    InvalidRequestError,
    KaishuError,
    TemplateError,
    shown,
)
from kaishu.text.channels import THINK_END, THINK_START, Thinking
from kaishu.text.messages import Json, clean_json, clean_messages, clean_tools
from kaishu.text.provenance import Marks
from kaishu.text.tokenizer import read_tokenizer_config

if TYPE_CHECKING:
    from types import CodeType

END_OF_PREFIX = "\udfff"  # marks where a continued message ends; outside text can't hold it
PROBE = "\udffe"  # marks a message whose way through the template is followed; nor can it hold this
MAX_TEMPLATE_CHARACTERS = 1_000_000
CPU_SECONDS_PER_MESSAGE = 2e-4  # twice what a message takes, and more
OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "enable_thinking")


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as text, and who wrote what.

    text:     the prompt as the user would see it
    outside:  positions in `text` of characters that could begin a control token but came from messages, tools or
              arguments: no control token begins there
    thinking: where the model is when it starts to write, by the tail of the prompt: `open` inside a thought, `closed`
              after one, `none` where the prompt leaves it to the model
    """

    text: str
    outside: frozenset[int] = field(default=frozenset(), repr=False)
    thinking: Thinking = "none"


class ChatTemplate:
    """One model's chat template. Immutable after loading; safe to share between threads."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        control_tokens: Collection[str],
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        cpu_seconds: float = 1.0,
    ) -> None:
        """Compile the templates.

        sources:        name to Jinja source; `default`, and `tool_use` if another is meant for prompts with tools
        control_tokens: contents of the tokenizer's control tokens
        special_tokens: what templates may name: bos_token, eos_token, ...
        now:            the clock that `strftime_now` shows
        cpu_seconds:    how long one rendering may compute (more for a long prompt); Qwen3's template takes 0.001
        raises:         TemplateError when a template isn't valid or asks for what no chat template may do
        """
        self._control_tokens = frozenset(control_tokens) | {THINK_START, THINK_END}
        self._marks = Marks(self._control_tokens)
        self._special_tokens = dict(special_tokens or {})
        self._now = now
        self._cpu_seconds = cpu_seconds
        self._sources = dict(sources)
        self._compiled = {name: _compile(name, source, self._marks) for name, source in sources.items()}
        self._readable = {name: _readable(name, source) - set(self._special_tokens) for name, source in sources.items()}

    @classmethod
    def from_folder(cls, folder: Path, *, control_tokens: Collection[str]) -> ChatTemplate:
        """As `find`, for a folder that must have a template.

        raises: TemplateError when there is none
        """
        template = cls.find(folder, control_tokens=control_tokens)
        if template is None:
            raise TemplateError(
                f"{folder} has no chat template.",
                hint="Use a chat model (its files hold chat_template.jinja, or tokenizer_config.json a chat_template), "
                "or complete raw text with generate.",
            )
        return template

    @classmethod
    def find(cls, folder: Path, *, control_tokens: Collection[str]) -> ChatTemplate | None:
        """Read a model's template: chat_template.jinja, else the field chat_template in tokenizer_config.json; further
        named ones from additional_chat_templates/. None where there is no template: a base model.

        raises: TemplateError when a template isn't valid; TokenizerError when tokenizer_config.json is damaged
        """
        config = read_tokenizer_config(folder)
        sources = _named_templates(config.get("chat_template"), folder)
        if (folder / "chat_template.jinja").is_file():
            sources["default"] = _read(folder / "chat_template.jinja")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            sources[path.stem] = _read(path)
        if not sources:
            return None
        return cls(sources, control_tokens=control_tokens, special_tokens=_special_tokens(config))

    def render(
        self,
        messages: object,
        *,
        tools: object = None,
        thinking: bool | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        arguments: Mapping[str, object] | None = None,
        allow_control_in_content: bool = False,
    ) -> RenderedPrompt:
        """Make the prompt for a list of messages.

        messages:                 see messages.clean_messages; never changed
        tools:                    see messages.clean_tools
        thinking:                 whether the model should think first, True or False; None leaves it to the template
        add_generation_prompt:    end with the header of the assistant's turn; by default unless a message is continued
        continue_final_message:   end with the final assistant message, left open; there, and only there, outside text
                                  may write `<think>` and `</think>` as control tokens, since the model wrote them
        arguments:                further variables that the template reads; the public API calls them, and errors name
                                  them, template_arguments
        allow_control_in_content: let control tokens in outside text be control tokens
        raises: InvalidMessagesError for messages or tools, InvalidRequestError and InvalidParameterError for the other
                arguments, TemplateError when the template fails or refuses
        """
        _check_truth("thinking", thinking, or_none=True)
        _check_truth("add_generation_prompt", add_generation_prompt, or_none=True)
        _check_truth("continue_final_message", continue_final_message)
        _check_truth("allow_control_in_content", allow_control_in_content)
        cleaned, cleaned_tools = clean_messages(messages), clean_tools(tools)
        if continue_final_message:
            _check_continuable(cleaned[-1], add_generation_prompt)
        name = "tool_use" if cleaned_tools and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise TemplateError(f"The model has only named chat templates ({', '.join(self._compiled)}), no default.")
        variables = self._check_arguments({} if arguments is None else arguments, name)
        if thinking is not None:
            variables["enable_thinking"] = thinking
        marks = Marks(()) if allow_control_in_content else self._marks
        marked = marks.mark(cleaned)
        if continue_final_message:
            final = marks.mark(cleaned[-1]["content"], keep=(THINK_START, THINK_END))
            marked[-1]["content"] = final + END_OF_PREFIX + " "
        given = (
            marks.mark(variables)
            | {"messages": marked, "tools": marks.mark(cleaned_tools), "documents": None}
            | {"add_generation_prompt": add_generation_prompt is not False and not continue_final_message}
        )
        rendered = self._run(name, marks, given)
        if continue_final_message:
            rendered = _cut_after_prefix(rendered)
        prompt = RenderedPrompt(marks.plain(rendered), marks.positions(rendered), self._thinking_at_the_end(rendered))
        self._check_kept(name, marks, given)
        if continue_final_message:
            _check_continued(prompt.text, cleaned[-1]["content"])
        self._check_thinking(prompt, thinking, name)
        return prompt

    def _run(self, name: str, marks: Marks, variables: Mapping[str, Any]) -> str:
        from jinja2 import Template

        from kaishu.text.budget import Budget
        from kaishu.text.sandbox import Sandbox

        seconds = self._cpu_seconds + CPU_SECONDS_PER_MESSAGE * len(variables["messages"])
        budget = Budget(_characters(variables), seconds)
        sandbox = Sandbox(marks, budget, self._now)
        try:
            template = Template.from_code(sandbox, self._compiled[name], dict(sandbox.globals))
            return str.__str__(template.render({**self._special_tokens, **variables}))
        except KaishuError:
            raise
        except Exception as error:  # whatever a foreign program raises is the template's failure, not ours
            raise _failure(name, error, marks) from error

    def _thinking_at_the_end(self, rendered: str) -> Thinking:
        """Look behind the last control token that isn't a thinking tag: that is the turn that the model continues.

        Tags from outside are still marked here, so they aren't found.
        """
        others = self._control_tokens - {THINK_START, THINK_END}
        start = max((rendered.rfind(token) for token in others), default=-1)
        opened, closed = rendered.rfind(THINK_START), rendered.rfind(THINK_END)
        if max(opened, closed) <= start:
            return "none"
        return "open" if opened > closed else "closed"

    def _check_arguments(self, arguments: object, name: str) -> dict[str, Any]:
        """Further variables must be ones that the template reads, and none of ours."""
        if not isinstance(arguments, Mapping):
            raise InvalidParameterError(
                "template_arguments", arguments, "an object: names and values of variables that the template reads"
            )
        readable = self._readable[name]
        for key in arguments:
            if key in OWN_VARIABLES:
                hint = f"Pass {'thinking' if key == 'enable_thinking' else key} itself instead."
            elif key not in readable:
                hint = None
            else:
                continue
            allowed = f"variables that this template reads ({', '.join(sorted(readable)) or 'it reads none'})"
            raise InvalidRequestError(
                f"template_arguments has {shown(key)}; allowed: {allowed}.",
                field=f"template_arguments.{key}" if isinstance(key, str) else "template_arguments",
                hint=hint,
            )
        return dict(clean_json(dict(arguments), "template_arguments"))

    def _check_kept(self, name: str, marks: Marks, given: Mapping[str, Any]) -> None:
        """Some templates read a system message only where it comes first; it must not vanish elsewhere.

        Whether the prompt has the same words says little: they may be another message's. So render once more, with a
        mark at the end of each such message, and look for the marks.
        """
        messages = given["messages"]
        late = [
            i
            for i, message in enumerate(messages)
            if i > 0 and message["role"] == "system" and message["content"].strip()
        ]
        if not late:
            return
        probed = list(messages)
        for i in late:
            probed[i] = {**messages[i], "content": messages[i]["content"] + f"{PROBE}{i}{PROBE}"}
        found = set(re.findall(f"{PROBE}([0-9]+){PROBE}", self._run(name, marks, {**given, "messages": probed})))
        lost = next((i for i in late if str(i) not in found), None)
        if lost is not None:
            raise InvalidMessagesError(
                f"messages[{lost}] is a system message that this model's template leaves out; "
                "allowed: one, at the start.",
                field=f"messages[{lost}]",
                hint="Put its text into the first message.",
            )

    def _check_thinking(self, prompt: RenderedPrompt, thinking: bool | None, name: str) -> None:
        if thinking is False and prompt.thinking == "open":
            raise InvalidParameterError(
                "thinking", False, "true, since this model's template always begins with a thought"
            )
        if thinking and prompt.thinking != "open" and "enable_thinking" not in self._sources[name]:
            raise InvalidParameterError("thinking", True, "false, since this model's template has no thinking")


def _check_continuable(final: Json, add_generation_prompt: bool | None) -> None:
    if add_generation_prompt:
        raise InvalidRequestError(
            "add_generation_prompt and continue_final_message are both set; allowed: one of them.",
            field="add_generation_prompt",
            hint="A continued message has its header already.",
        )
    if final["role"] != "assistant" or "tool_calls" in final:
        found = "calls tools" if "tool_calls" in final else f"has the role {final['role']}"
        raise InvalidMessagesError(
            f"The final message {found}; allowed: an assistant message of text, since it is to be continued.",
            field="messages",
        )


def _check_truth(field: str, value: object, *, or_none: bool = False) -> None:
    """`"false"` and 0 would be taken for something else than what they say."""
    if not isinstance(value, bool) and not (or_none and value is None):
        raise InvalidParameterError(field, value, "True, False or None" if or_none else "True or False")


def _check_continued(text: str, content: str) -> None:
    """The prompt must end with the message as it stands, but for white space that the template trims."""
    if not text.rstrip().endswith(content.strip()):
        raise TemplateError(
            "The chat template rewrites the final message, so it can't be continued as it stands.",
            hint=f"Write a thought as the template does: {THINK_START}\\n…\\n{THINK_END}\\n\\n…",
        )


def _cut_after_prefix(rendered: str) -> str:
    """The prompt up to the end of the continued message. Where the template trims messages, so do we."""
    end = rendered.rfind(END_OF_PREFIX)
    if end < 0:
        raise TemplateError("The chat template leaves out the final message, so it can't be continued.")
    return rendered[:end] if rendered[end + 1 : end + 2] == " " else rendered[:end].rstrip()


def _compile(name: str, source: str, marks: Marks) -> CodeType:
    from kaishu.text.sandbox import compile_template

    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateError(f"The chat template {name!r} has {len(source):,} characters; allowed: 1,000,000.")
    try:
        return compile_template(source, marks)
    except Exception as error:  # Jinja's, but also Python's own, where the template is nested too deeply
        raise _failure(name, error, marks) from error


def _readable(name: str, source: str) -> set[str]:
    from kaishu.text.template_variables import variables_read

    try:
        return variables_read(source) - set(OWN_VARIABLES)
    except Exception as error:  # as in _compile
        raise _failure(name, error, Marks(())) from error


def _failure(name: str, error: Exception, marks: Marks) -> TemplateError:
    what = marks.plain(str(error)).strip() or type(error).__name__
    if isinstance(error, RecursionError):
        what = "it recurses without end"
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return TemplateError(f"The chat template {name!r} fails{where}: {what.removesuffix('.')}.")


def _characters(value: object) -> int:
    """How much text there is in JSON data."""
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_characters, value)) + len(value)
    return len(value) if isinstance(value, str) else 8


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path} can't be read: {error}.", hint="Download it again.") from error


def _named_templates(value: object, folder: Path) -> dict[str, str]:
    """tokenizer_config.json's chat_template: one source, a dict of them, or a list of {"name", "template"}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        value = {item.get("name"): item.get("template") for item in value}
    if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return dict(value)
    raise TemplateError(
        f"{folder / 'tokenizer_config.json'} has a chat_template that is neither a string nor a set of named strings: "
        f"{json.dumps(value)[:60]}."
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, by which templates name them."""
    tokens = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"):
        value = config.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[key] = content
    return tokens
