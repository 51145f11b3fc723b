"""Models that the tests of this folder share."""

from __future__ import annotations

import pytest
import torch

from tests.reference.parity import our_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread_is_enough_for_tiny_models():
    """Tiny matrices are slower on many threads; OMP_NUM_THREADS, where set, already says so to torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 2))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint):
    """`tiny_model(kind, **options)`: our model of a tiny checkpoint, loaded once a session."""
    loaded = {}

    def model_of(kind, **options):
        key = (kind, *sorted(options.items()))
        if key not in loaded:
            loaded[key] = our_model(tiny_checkpoint(kind), **options)
        return loaded[key]

    return model_of
