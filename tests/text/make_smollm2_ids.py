"""Makes golden/smollm2_ids.json: what llama.cpp makes of some texts with SmolLM2's GGUF file.

    pip install llama-cpp-python
    python -m tests.text.make_smollm2_ids

llama.cpp is no dependency of the tests, because it has to be compiled; its answers are kept instead. `ids` are those of
ordinary text, `with_control` those where control tokens in the text count.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.smollm2_file import find_smollm2_file

GOLDEN = Path(__file__).parent / "golden" / "smollm2_ids.json"

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "hello world, this is plain English text.",
    "   three leading spaces, two  inside, trailing   ",
    "\t\ttabs\tand\n\nnewlines\r\nwindows\r\n\r\n",
    "def add(a, b):\n    return a + b  # sum\n\n\nclass A:\n\tpass\n",
    "I'm you're he'd we'll they've it's 'tis rock'n'roll WE'LL I'M",
    "0 1 12 123 1234 12345 3.14159 1,000,000 1e-10 0x7F",
    "year2024month11 a1b2c3",
    "½ ⅷ ² ١٢٣ ४५६ 百二十",
    "用楷书写“永”字，八法皆备。",
    "日本語のテキスト、カタカナとひらがな。",
    "한국어 텍스트",
    "Привет, мир! Ещё раз.",
    "Ελληνικά άλφα",
    "العربية شكرا",
    "עברית שלום",
    "हिन्दी नमस्ते",
    "ไทย ภาษา",
    "naïve café Ångström",
    "e\u0301 decomposed, \u00e9 composed",
    "👩‍👩‍👧 👍🏽 🇨🇳 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "𠮷 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 🜚",
    "!!! ??? ... --- *** ((())) [[]] {{}} <<>> ||| \\\\ //",
    "https://example.org/a/b?c=d&e=f#g mail@example.org",
    "$x^2 + y^2 = z^2$ \\frac{1}{2} ≤ ≥ ≠ ∞",
    "non\u00a0breaking\u2003em\u3000ideographic",
    "zero\u200bwidth\ufeffmark",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|im_end|> <|im_start|><|im_start|",
    "<think>\n</think> <tool_call>",
    "x" * 300,
    "a b" * 50 + " " * 40 + "\n" * 20 + "end",
    "CamelCaseIdentifiers snake_case_names SCREAMING_SNAKE kebab-case",
]


def main() -> None:
    """Ask llama.cpp and write the file."""
    from llama_cpp import Llama

    llama = Llama(str(find_smollm2_file()), vocab_only=True, verbose=False)
    cases = [
        {
            "text": text,
            "ids": llama.tokenize(text.encode(), add_bos=False, special=False),
            "with_control": llama.tokenize(text.encode(), add_bos=False, special=True),
        }
        for text in TEXTS
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    GOLDEN.write_text(f'{{"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
