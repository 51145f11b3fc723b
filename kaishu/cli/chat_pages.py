"""What is computed of a saved conversation, beside its file: FILE.pages, so that going on starts where it was left.

Owns which tokens a conversation's next turn will begin with, the second file's name and what is said about it. The file
itself is engine/saved_pages.py's. Nothing depends on it: without it, or with one that doesn't fit, a conversation is
computed again, and the user is told. Used by the commands /save and /load.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kaishu.byte_sizes import size
from kaishu.cli.chat_session import Message, Session
from kaishu.cli.printable import counted
from kaishu.errors import KaishuError

if TYPE_CHECKING:
    from kaishu.llm import LLM
    from kaishu.text.template import RenderedPrompt

SUFFIX = ".pages"


class ChatPages:
    """Saves and loads what one model has computed."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def save(self, session: Session, file: Path) -> str | None:
        """Write what the next turn will find computed.

        file:   where the conversation itself is
        return: what to tell the user, if anything
        """
        pages = file.with_name(file.name + SUFFIX)
        try:
            saved = self._llm.save_pages(self._next_prompt(session), pages)
        except KaishuError as error:
            return f"What is computed of it could not be kept: {error.message}"
        if saved is None:
            return None
        return (
            f"What is computed of it, {counted(saved.saved_tokens, 'token')}, is in {pages} ({size(saved.num_bytes)})."
        )

    def load(self, file: Path) -> str | None:
        """Have what was computed of a conversation. return: what to tell the user, if anything"""
        pages = file.with_name(file.name + SUFFIX)
        if not pages.exists():
            return None
        try:
            loaded = self._llm.load_pages(pages)
        except KaishuError as error:
            return f"{error.message} The conversation is computed again with the next message."
        whole = loaded.ready_tokens == loaded.saved_tokens
        part = "" if whole else f" of {loaded.saved_tokens:,}, as many as there is room for"
        return f"What was computed of it is back from {pages}: {counted(loaded.ready_tokens, 'token')}{part}."

    def _next_prompt(self, session: Session) -> RenderedPrompt:
        """The prompt of the next turn, as far as it is known: the results of calls that wait for one, or a message.

        It isn't the last prompt with its answer: a template may drop the thought before it.
        """
        following: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": ""} for call in session.pending_calls()
        ]
        messages = [*session.messages, *(following or [{"role": "user", "content": ""}])]
        return self._llm.render(messages, tools=session.tools, thinking=session.thinking)
