"""From one row of logits to one token: what a request asks for (params.py) and how it is chosen (sampler.py).

Works on numpy rows; knows nothing of models, text or batches.
"""

from kaishu.sampling.log_probabilities import SampledToken, TokenProbability, prompt_logprobs
from kaishu.sampling.params import SamplingParams
from kaishu.sampling.sampler import Sampler

__all__ = ["SampledToken", "Sampler", "SamplingParams", "TokenProbability", "prompt_logprobs"]
