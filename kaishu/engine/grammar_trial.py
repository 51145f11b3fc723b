"""Grammars that might be compiled for ever: first in a process of their own, which can be ended.

Owns which formats these are, and that process. Where many expressions have to fit the same text, llguidance's time and
memory double with each; where several multiples do, they grow with the product. Nothing stops it in a thread: it would
take a core, and in the end all memory. What comes through here is compiled once more, in the process that needs it.
Used by grammar.py; the process runs this module.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

from kaishu.engine.deep_stack import deeply
from kaishu.engine.grammar_texts import LARK_TEXT, grammar_text
from kaishu.errors import KaishuError
from kaishu.output_format import OutputFormat

MANY_PATTERNS = 10  # with 12 that all have to fit it takes a few milliseconds, with 20 seconds, with 30 for ever
COMBINING = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")
TEXT_OR_TOKEN = re.compile(rf"(?P<text>{LARK_TEXT})|<[^<>\s]+>")


def may_run_on(format_: OutputFormat) -> bool:
    """Whether a format has enough in it for that, wherever it stands; most that do are harmless."""
    text = format_.content
    if format_.kind == "lark" and ("&" in text or "\\u" in text):  # keywords can be spelt with \\u there
        return True
    if format_.kind not in ("json_schema", "lark") or not any(f'"{keyword}"' in text for keyword in COMBINING):
        return False
    return text.count('"pattern') >= MANY_PATTERNS or text.count('"multipleOf"') > 1


def ends_in_time(format_: OutputFormat, seconds: float) -> bool:
    """Compile a format in a process of its own, whatever comes of it.

    seconds: of a processor, so that on a busy machine what is harmless isn't refused; four times as long by the clock
    return:  whether that was over in time
    """
    asked = json.dumps([format_.kind, format_.content, seconds]).encode()
    command = [sys.executable, "-m", "kaishu.engine.grammar_trial"]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=asked, stdout=quiet, stderr=quiet, timeout=4 * seconds, env=os.environ | paths, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode >= 0  # below: the system ended it


def main() -> None:
    """The process: a format from stdin."""
    kind, content, seconds = json.load(sys.stdin)
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
    with suppress(KaishuError):  # the one who asks finds out for itself
        deeply(lambda: _compile(OutputFormat(kind, content)))


def _compile(format_: OutputFormat) -> None:
    from llguidance import LLMatcher, LLTokenizer

    if format_.kind == "lark":  # there are no control tokens here, and none is needed
        plain = TEXT_OR_TOKEN.sub(lambda part: part["text"] or '"x"', format_.content)
        format_ = OutputFormat.lark(plain)
    LLMatcher(LLTokenizer("byte"), grammar_text(format_), log_level=0).compute_bitmask()


if __name__ == "__main__":
    main()
