"""A server in a process of its own whose model takes its time, for tests of how a server ends.

    python -m tests.server.slow_server '{"step_s": 0.02, "load_s": 0, "grace_s": 5, "drain_s": 30}'

The model says "1" for ever, a token a step. When the server is ready, its address is a line on stdout.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from kaishu.loading import load_model
from kaishu.server import run
from kaishu.server.metrics import Metrics
from kaishu.server.service import Service
from kaishu.server.settings import ServerSettings
from tests.scripted import ScriptedExecutor
from tests.server.conftest import service_on


class SlowExecutor(ScriptedExecutor):
    step_s = 0.0

    def step(self, batch):
        time.sleep(self.step_s)
        return super().step(batch)


def main() -> None:
    options = json.loads(sys.argv[1])
    run.GRACE_S = options.pop("grace_s", run.GRACE_S)
    step_s, load_s = options.pop("step_s", 0.0), options.pop("load_s", 0.0)
    settings = ServerSettings(port=0, **options)

    def load(settings: ServerSettings, metrics: Metrics) -> Service:
        print("loading", flush=True)
        time.sleep(load_s)
        loaded = load_model("tiny", threads=1, context_tokens=1024, say=lambda _: None)
        (one,) = loaded.tokenizer.encode("1")
        executor = SlowExecutor(lambda context: one, vocab_size=loaded.config.vocab_size)
        executor.step_s = step_s
        return service_on(replace(loaded, executor=executor), speculation=False)(settings, metrics)

    run.run_server(settings, load, has_keys=False, on_ready=lambda service, url: print(url, flush=True))


if __name__ == "__main__":
    main()
