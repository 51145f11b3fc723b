"""Docstrings in kaishu/reference can't lie about shapes and dtypes: each line is held against real, tiny runs."""

import dataclasses
import importlib
import inspect
import pkgutil
import sys

import pytest
import torch

import kaishu.batch
import kaishu.reference
from kaishu.batch import SequenceTokens, TokenBatch, pack
from kaishu.reference.caches import ContiguousCache, RecomputeCache
from kaishu.reference.executor import ReferenceExecutor
from tests.reference import docstring_shapes
from tests.reference.docstring_shapes import Checker, DocstringLieError
from tests.reference.parity import our_model

MODULES = [
    importlib.import_module(f"kaishu.reference.{module.name}")
    for module in pkgutil.iter_modules(kaishu.reference.__path__)
]
PROTOCOLS = {"Cache.append"}  # never called itself: its implementations are


def checker_for(model):
    config = model.config
    fixed = {
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "K": config.num_key_value_heads,
        "G": config.queries_per_key,
        "d": config.head_dim,
        "V": config.vocab_size,
        **({"E": config.experts.num_experts} if config.experts else {}),
    }
    assert len(set(fixed.values())) >= len(fixed) - 1, "dimensions must differ, or a wrong letter would pass"
    return Checker(fixed, model.embed_tokens.dtype)


def run_everything(folder, attention):
    """Ragged steps with every cache, an executor and a generated text; returns the model."""
    model = our_model(folder, dtype="bfloat16", attention=attention)
    sequences = [SequenceTokens([1, 2, 3], 0, [2]), SequenceTokens([5] * 7, 0, [0, 4, 1], wants_logits=(6, 2))]
    batch = pack(sequences)
    for cache in (RecomputeCache(), ContiguousCache(model, capacity_tokens=9, sequences=2)):
        model.forward(batch, cache)
    executor = ReferenceExecutor(model, num_pages=5, page_tokens=4)
    executor.step(batch)
    executor.step(pack([SequenceTokens([9], 3, [2])]))
    executor.hidden(batch)
    loop = sys.modules["kaishu.reference.generate"]  # its `greedy` as it is watched, not the default bound before
    list(loop.generate(model, [1, 2], RecomputeCache(), max_tokens=2, end_tokens=(), choose=loop.greedy))
    return model


@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
@pytest.mark.parametrize("kind", ["odd_head_dim", "moe", "llama_biased"])
def test_every_documented_shape_and_dtype_is_what_comes(kind, attention, tiny_checkpoint, monkeypatch):
    folder = tiny_checkpoint(kind)
    checker = checker_for(our_model(folder, dtype="bfloat16"))  # in bfloat16, "float" and "float32" differ
    docstring_shapes.watch(MODULES, checker, monkeypatch)
    model = run_everything(folder, attention)
    checker.check_fields("the model", model, dict(checker.fixed))
    checker.check_fields("a batch", pack([SequenceTokens([1, 2], 0, [0])]), {})

    expected = {function.__qualname__ for _, _, function in docstring_shapes.documented(MODULES)} - PROTOCOLS
    other = "attend_with_sdpa" if attention == "explicit" else "attend_explicitly"
    only_experts = set() if kind == "moe" else {"route", "mixture_of_experts"}
    missed = expected - checker.checked - {other} - only_experts
    assert not missed, f"never met a value: {sorted(missed)}"
    assert TokenBatch.__qualname__ in checker.checked


def test_every_tensor_of_a_public_function_or_dataclass_has_a_shape_line():
    missing = []
    for module in MODULES:
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(thing):
                missing += [f"{name}, {argument}" for argument in docstring_shapes.undescribed(thing)]
            elif dataclasses.is_dataclass(thing):
                described = docstring_shapes.promises_of(thing.__doc__)
                missing += [
                    f"{name}.{field.name}"
                    for field in dataclasses.fields(thing)
                    if docstring_shapes.is_tensor(field.type) and field.name not in described
                ]
    assert not missing


def test_shape_lines_name_what_exists():
    for _, _, function in docstring_shapes.documented(MODULES):
        known = {*inspect.signature(function).parameters, "return"}
        assert docstring_shapes.promises_of(function.__doc__).keys() <= known, function.__qualname__


def truth(x, weight):
    """A function whose docstring is right.

    x:      [T, D] float, some rows
    weight: [n, D] float, n outputs
    return: [T, n] dtype of x, products
    """
    return x @ weight.T


LIES = {
    "a dimension missing": ("x:      [T, D]", "x:      [D]"),
    "a letter of the config that isn't": ("weight: [n, D]", "weight: [D, n]"),
    "a letter with two meanings": ("return: [T, n]", "return: [n, T]"),
    "a wrong dtype": ("[T, D] float,", "[T, D] float32,"),
    "a wrong dtype returned": ("dtype of x", "int64"),
    "a wrong number": ("return: [T, n]", "return: [T, 9]"),
    "a wrong product": ("return: [T, n]", "return: [T, n·2]"),
    "one tensor promised twice": ("return: [T, n] dtype of x", "return: [T, n] dtype of x, [T] float"),
}


@pytest.mark.parametrize("lie", [None, *LIES])
def test_a_docstring_that_lies_is_caught(lie, monkeypatch):
    if lie:
        before, after = LIES[lie]
        assert before in truth.__doc__
        monkeypatch.setattr(truth, "__doc__", truth.__doc__.replace(before, after))
    x, weight = torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(5, 8, dtype=torch.bfloat16)
    checker = Checker({"D": 8}, torch.bfloat16)

    def call():
        return checker.check_call(truth, {"x": x, "weight": weight}, lambda: truth(x, weight))

    if lie is None:
        assert call().shape == (3, 5)
    else:
        with pytest.raises(DocstringLieError):
            call()
