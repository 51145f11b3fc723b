"""Threads with a deep stack, and the schemas and grammars that end a process without one."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kaishu.engine.deep_stack import STACK_BYTES, deeply, start_deep

ROOT = Path(__file__).parent.parent.parent
CHAINS = {
    "references": """OutputFormat.json_schema({"$ref": "#/$defs/a0", "$defs": {"a4000": {"type": "string"}, **{
        f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(4000)}}})""",
    "properties": """OutputFormat.json_schema({"$ref": "#/$defs/a0", "$defs": {"a2000": {"type": "string"}, **{
        f"a{i}": {"type": "object", "properties": {"b": {"$ref": f"#/$defs/a{i + 1}"}}, "required": ["b"]}
        for i in range(2000)}}})""",
    "rules": r"""OutputFormat.lark("\n".join(["start: a0", 'a2900: "x"', *(
        f'a{i}: "y" a{i + 1}' for i in range(2900))]))""",
}


def test_a_call_gives_what_it_makes_and_raises_what_it_raises() -> None:
    assert deeply(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        deeply(lambda: 1 // 0)


def test_other_threads_get_the_stack_that_they_had() -> None:
    before = threading.stack_size()
    start_deep(lambda: None, "deep").join()
    assert threading.stack_size() == before != STACK_BYTES


def test_many_that_start_at_once_leave_the_size_as_it_was() -> None:
    before = threading.stack_size()
    together = threading.Barrier(8)

    def start() -> None:
        together.wait(60)
        for _ in range(50):
            start_deep(lambda: None, "deep").join()

    starting = [threading.Thread(target=start) for _ in range(8)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(60)
    assert threading.stack_size() == before


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_does_not_end_the_process(name: str) -> None:
    program = f"""
from kaishu.loading import load_model
from kaishu.output_format import OutputFormat
from kaishu.prompting import Prompting
loaded = load_model("tiny", threads=1, context_tokens=256, say=lambda _: None)
compiler = Prompting(loaded)._compiler
compiler._compile_seconds = 60
compiler.compile({CHAINS[name]}).start().allowed()
print("there")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "there\n", (done.returncode, done.stderr)


def test_a_process_that_ends_while_a_grammar_compiles_ends_as_it_should() -> None:
    program = """
import sys
import time
from llguidance import LLMatcher
from kaishu.engine.deep_stack import start_deep

class IsLong:
    def __del__(self, sleep=time.sleep):
        sleep(3)

sys.is_long = IsLong()  # so the end of the process takes longer than the grammar
expressions = " & ".join(f"/.*a.{{{n}}}b.*c.{{{n + 3}}}/" for n in range(5, 21))
text = LLMatcher.grammar_from_lark(f"start: T\\nT: {expressions}")
start_deep(lambda: LLMatcher.validate_grammar(text), "deep")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_never_comes_back_does_not_keep_a_process_from_ending() -> None:
    program = """
import threading
from kaishu.engine import deep_stack
deep_stack.EXIT_SECONDS = 0.1
deep_stack.start_deep(threading.Event().wait, "deep")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 0
