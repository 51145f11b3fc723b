"""What llama.cpp says on the real file: its likeliest tokens after 20 prompts, and how likely it finds an old text.

Run as `python -m tests.make_smollm2_continuations FILE.gguf` where the package llama-cpp-python is installed, which no
test needs; it writes tests/golden/smollm2_continuations.json, which test_smollm2.py compares with. The prompts and the
text are token ids already there, so that nothing but the model's arithmetic is compared. Version 0.3.36 dies of an
illegal instruction where it is compiled for a CPU with AMX.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "smollm2_continuations.json"
NEW_TOKENS = 32


def main(model: str) -> None:
    from llama_cpp import Llama

    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    llm = Llama(model, n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False, seed=0)
    end = llm.token_eos()
    for entry in golden["prompts"]:
        llm.reset()
        llm.eval(entry["ids"])
        entry["continuation"], entry["margins"] = [], []
        for _ in range(NEW_TOKENS):
            row = np.array(llm.scores[llm.n_tokens - 1])
            second, best = np.argsort(row)[-2:]
            entry["continuation"].append(int(best))
            entry["margins"].append(round(float(row[best] - row[second]), 4))
            if best == end:
                break
            llm.eval([int(best)])
    ids = golden["text"]
    llm.reset()
    llm.eval(ids)
    rows = np.array(llm.scores[: len(ids) - 1], np.float64)
    rows -= rows.max(1, keepdims=True)
    surprise = np.log(np.exp(rows).sum(1)) - rows[np.arange(len(ids) - 1), ids[1:]]
    golden["surprise"] = [round(float(nats), 4) for nats in surprise]
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
