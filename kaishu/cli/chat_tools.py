"""The functions of a chat: the calls that an answer makes are shown, asked about and run.

Owns the question before a call and how a result is shown. What a call does is in kaishu/agent.py and
kaishu/tool_functions.py; what the conversation is, in chat_session.py. Used by chat.py and chat_commands.py.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kaishu.agent import Approve, answer_call
from kaishu.cli.chat_session import Message, Session
from kaishu.cli.printable import printable
from kaishu.errors import shortened
from kaishu.text.channels import ToolCall
from kaishu.tool_functions import ToolFunction

Say = Callable[[str], None]

STOPPED = "stopped: the user broke this off."
SHOWN_LINES, SHOWN_CHARACTERS = 8, 600


@dataclass(frozen=True)
class ChatTools:
    """What a chat can run.

    functions: name → function; none where the tools are definitions, whose results come from /tool
    approve:   whether a call may run; None: all may
    say:       shows a result
    """

    functions: Mapping[str, ToolFunction] = field(default_factory=dict)
    approve: Approve | None = None
    say: Say = print

    def run_calls(self, session: Session) -> bool:
        """Run the calls that wait for a result, in order, and add the results.

        return: whether none waits any more, so that the model can go on; False where one waits for /tool
        raises: KeyboardInterrupt after Ctrl-C; every call that waited has been answered then, too
        """
        while pending := session.pending_calls():
            if self._is_manual(pending[0]["function"]["name"], session):
                return False
            try:
                result = answer_call(self.functions, _tool_call(pending[0]), self.approve)
            except KeyboardInterrupt:
                for _ in pending:
                    session.add_tool_result(STOPPED)
                raise
            session.add_tool_result(result)
            self.say(f"← {shown_result(result)}")
        return True

    def _is_manual(self, name: str, session: Session) -> bool:
        """Whether a call is the user's to answer: no functions, or a definition without one, as from /load."""
        defined = {tool["function"]["name"] for tool in session.tools or []}
        return not self.functions or (name not in self.functions and name in defined)


class AskingUser:
    """Asks at the terminal before each call.

    read: shows a question and gives what is typed; raises EOFError for Ctrl-D
    """

    def __init__(self, read: Callable[[str], str] = input) -> None:
        self._read = read
        self._always: set[str] = set()  # names that were approved once and for all

    def __call__(self, call: ToolCall) -> bool:
        """Whether this call may run: only an explicit yes counts, typed after the question."""
        if call.name in self._always:
            return True
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before is no answer
        question = f"Run {call.name} {shortened(call.arguments)}? [y]es, [a]lways {call.name}, [N]o: "
        try:
            answer = self._read(printable(question)).strip().lower()
        except EOFError:
            print()
            return False
        if answer in ("a", "always"):
            self._always.add(call.name)
        return answer in ("y", "yes", "a", "always")


def refusing(say: Say) -> Approve:
    """Where nobody can be asked: nothing runs, and the user is told why."""

    def refuse(call: ToolCall) -> bool:
        say(f"{call.name} was not run: there is no terminal to ask at. Add --yes to run calls without being asked.")
        return False

    return refuse


def shown_result(result: str) -> str:
    """A result for the screen: its beginning, and how much there is."""
    lines = result.strip("\n").splitlines()
    head = "\n  ".join(lines[:SHOWN_LINES])[:SHOWN_CHARACTERS]
    is_whole = len(lines) <= SHOWN_LINES and len("\n  ".join(lines)) <= SHOWN_CHARACTERS
    return head if is_whole else f"{head}… ({len(result):,} characters)"


def _tool_call(call: Message) -> ToolCall:
    """A call of a session's turn, which keeps whole ones only."""
    return ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"], is_whole=True)
