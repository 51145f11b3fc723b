"""Training of the tiny model: one seeded run on two CPU cores, float32 weights, exported in bfloat16.

Run:    python training/tiny/train.py --out RUN_FOLDER
Resume: the same command with --resume
Two processes of one thread each share every step: they wait for each other once a step, not at every operation.
Writes RUN_FOLDER/train.log, RUN_FOLDER/state.pt every few minutes, and at the end the checkpoint in kaishu/models/tiny.
"""

import argparse
import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as group
import torch.multiprocessing as processes
from tokenizers import Tokenizer

from answering import correct
from arithmetic import arithmetic
from batches import Block, steps
from common import Conversation
from lists import lists
from make_tokenizer import FOLDER
from model import export, new_model
from optimiser import make_optimisers
from tools import tools

MUON_RATE, ADAM_RATE, WARM_UP = 0.02, 0.004, 100
AVERAGE = 0.995  # decay of the running mean of the weights, which is what is exported


def rate(step: int, total: int) -> float:
    """Linear warm-up, a plateau for the first fifth, then linearly to zero."""
    return min(1.0, (step + 1) / WARM_UP, max(0.0, (total - step) / (total * 0.8)))


def add_gradients(model: Any, loss: torch.Tensor) -> float:
    """Sum gradients and loss over the processes, in place; return: the summed loss."""
    parameters = list(model.parameters())
    flat = torch.cat([loss.reshape(1)] + [parameter.grad.reshape(-1) for parameter in parameters])
    group.all_reduce(flat)
    parts = flat[1:].split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
    return float(flat[0])


def own_share(blocks: list[Block]) -> list[Block]:
    """This process's blocks: the largest first, each to the process with the least so far."""
    shares: list[list[Block]] = [[] for _ in range(group.get_world_size())]
    for block in sorted(blocks, key=lambda block: -block.ids.numel()):
        min(shares, key=lambda share: sum(other.ids.numel() for other in share)).append(block)
    return shares[group.get_rank()]


def train_step(model: Any, optimisers: list[torch.optim.Optimizer], blocks: list[Block], factor: float) -> float:
    """One step over several blocks, the loss averaged over all learnt tokens; return: that loss.

    Every process computes its share of the blocks; all then take the same step.
    """
    count = sum(len(block.targets) for block in blocks)
    total = torch.zeros(())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for block in own_share(blocks):
        hidden = model.model(input_ids=block.ids, use_cache=False).last_hidden_state  # [B, T, D]
        logits = model.lm_head(hidden.flatten(0, 1)[block.places])  # [N, V]: the head only where something is learnt
        loss = torch.nn.functional.cross_entropy(logits, block.targets, reduction="sum") / count
        loss.backward()
        total += loss.detach()
    mean = add_gradients(model, total)
    torch.nn.utils.clip_grad_norm_([p for part in optimisers[1].param_groups for p in part["params"]], 1.0)
    for optimiser in optimisers:
        for part in optimiser.param_groups:
            part["lr"] = part.setdefault("full_lr", part["lr"]) * factor
        optimiser.step()
    return mean


def small_evaluation(model: Any, tokenizer: Tokenizer, samples: int) -> str:
    """Exact matches on a few held-out items of the hard skills, as one line for the log."""
    rng = random.Random(99)
    makers: dict[str, Callable[[], Conversation]] = {
        "add": lambda: arithmetic(rng, "eval", False, "+"),
        "subtract": lambda: arithmetic(rng, "eval", False, "-"),
        "thinking": lambda: arithmetic(rng, "eval", True),
        "lists": lambda: lists(rng, "eval", False),
        "tools": lambda: tools(rng, "eval", rng.random() < 0.5),
    }
    model.eval()
    scores = {name: correct(model, tokenizer, [make() for _ in range(samples)]) for name, make in makers.items()}
    model.train()
    return "  ".join(
        f"{name} {sum(right for _, _, right in results) / samples:.0%}" for name, results in scores.items()
    )


class Run:
    """Everything a run holds between steps, and how it is saved."""

    def __init__(self, tokenizer: Tokenizer, seed: int, out: Path) -> None:
        self.tokenizer, self.out = tokenizer, out
        self.model = new_model(tokenizer, seed)
        self.optimisers = make_optimisers(self.model, MUON_RATE, ADAM_RATE)
        self.average = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.step, self.tokens = 0, 0
        self.seconds, self.core_seconds = 0.0, 0.0  # by the clock, and in which this process had a core

    def update_average(self) -> None:
        decay = min(AVERAGE, (1 + self.step) / (10 + self.step))
        for name, tensor in self.model.state_dict().items():
            self.average[name].lerp_(tensor, 1 - decay)

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "core_seconds": self.core_seconds,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        torch.save(state, self.out / "state.part")
        (self.out / "state.part").replace(self.out / "state.pt")

    def load(self) -> None:
        state = torch.load(self.out / "state.pt")
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.step, self.tokens = state["step"], state["tokens"]
        self.seconds, self.core_seconds = state["seconds"], state["core_seconds"]
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)

    def say(self, text: str) -> None:
        minutes = f"{self.seconds / 60:.1f} min ({self.core_seconds / 60:.1f} of a core)"
        line = f"step {self.step} · {minutes} · {self.tokens / 1e6:.2f} M tokens · {text}"
        print(line, flush=True)
        with (self.out / "train.log").open("a") as log:
            log.write(line + "\n")


def train(run: Run, arguments: argparse.Namespace) -> None:
    """Steps from where the run stands up to the planned number, or to where it is told to stop."""
    is_first = group.get_rank() == 0
    stream = steps(run.tokenizer, arguments.seed, run.step, arguments.steps)
    losses: list[float] = []
    stop_at = min(arguments.steps, arguments.stop_at)
    start, start_of_core = time.perf_counter(), time.process_time()
    for blocks in islice(stream, stop_at - run.step):
        losses.append(train_step(run.model, run.optimisers, blocks, rate(run.step, arguments.steps)))
        run.step += 1
        run.update_average()
        run.tokens += sum(block.ids.numel() for block in blocks)
        run.seconds += time.perf_counter() - start
        run.core_seconds += time.process_time() - start_of_core
        start, start_of_core = time.perf_counter(), time.process_time()
        if run.step % 50 == 0 and is_first:
            run.say(f"loss {sum(losses) / len(losses):.4f}")
            losses.clear()
        if run.step % arguments.save_every == 0 and is_first:
            run.save()
            export(run.average, run.tokenizer, run.out / "latest")
            run.say(small_evaluation(run.model, run.tokenizer, 40))


def work(rank: int, arguments: argparse.Namespace) -> None:
    """One process of the run."""
    torch.set_num_threads(1)
    address = f"file://{(arguments.out / 'meeting').absolute()}"
    group.init_process_group("gloo", init_method=address, rank=rank, world_size=arguments.processes)
    run = Run(Tokenizer.from_file(str(FOLDER / "tokenizer.json")), arguments.seed, arguments.out)
    if arguments.resume:
        run.load()
    train(run, arguments)
    if rank == 0:
        run.save()
        export(run.average, run.tokenizer, FOLDER if run.step == arguments.steps else run.out / "latest")
        run.say("done")
    group.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the log and the run's state")
    parser.add_argument("--steps", type=int, default=4500, help="planned steps: where the rate reaches zero")
    parser.add_argument("--stop-at", type=int, default=10**9, help="stop at this step, to go on later with --resume")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "meeting").unlink(missing_ok=True)
    processes.spawn(work, (arguments,), nprocs=arguments.processes)


if __name__ == "__main__":
    main()
