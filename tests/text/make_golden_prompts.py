"""Render the golden prompts with transformers, from Qwen3's real template: python -m tests.text.make_golden_prompts

Writes tests/text/golden/qwen3_prompts.json: for each case the prompt and its ids, as transformers makes them (there,
control tokens in contents become control ids).
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.qwen3_files import find_qwen3_files
from tests.text.golden_conversations import CONVERSATIONS, TOOL_SETS, cases

GOLDEN = Path(__file__).parent / "golden" / "qwen3_prompts.json"


def main() -> None:
    """Write the file."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(find_qwen3_files()))
    lines = []
    for case in cases():
        prompt = tokenizer.apply_chat_template(
            CONVERSATIONS[case["name"]], tools=TOOL_SETS[case["tools"]], tokenize=False, **case["options"]
        )
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        lines.append(json.dumps({**case, "prompt": prompt, "ids": ids}, ensure_ascii=True))
    head = json.dumps(f"Rendered by transformers {transformers.__version__} from Qwen3's own template.")
    GOLDEN.write_text(f'{{"source": {head},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} prompts in {GOLDEN}")


if __name__ == "__main__":
    main()
