"""Muon for the hidden matrices, AdamW for the rest (embedding, norms).

Muon (Keller Jordan, 2024): momentum, then the update's nearest orthogonal matrix by five Newton-Schulz steps.
Owns a form that treats all matrices of one shape at once, in float32: torch.optim.Muon works in bfloat16, one matrix
after the other, and without bfloat16 instructions takes longer than the model's own passes.
"""

import torch
from torch import nn

QUINTIC = (3.4445, -4.7750, 2.0315)  # Newton-Schulz coefficients that push every singular value to about one


def orthogonalise(updates: torch.Tensor) -> torch.Tensor:
    """updates: [N, R, C] float32 · return: [N, R, C], each matrix's singular values near one."""
    is_tall = updates.shape[-2] > updates.shape[-1]
    x = updates.mT if is_tall else updates
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay; the step is scaled by sqrt(max(1, rows / columns))."""

    def __init__(
        self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        shapes = {tuple(matrix.shape) for matrix in matrices}
        groups = [{"params": [m for m in matrices if tuple(m.shape) == shape]} for shape in sorted(shapes)]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            gradients, buffers = [], []
            for parameter in group["params"]:
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                gradients.append(parameter.grad)
                buffers.append(state["momentum"])
            updates = torch.stack(gradients).lerp_(torch.stack(buffers), group["momentum"])
            rows, columns = updates.shape[1:]
            scale = max(1.0, rows / columns) ** 0.5
            for parameter, update in zip(group["params"], orthogonalise(updates), strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def make_optimisers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """return: Muon over the layers' matrices, AdamW over everything else."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [Muon(matrices, muon_lr), torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)]
