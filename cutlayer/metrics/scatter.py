"""How much of what is sent tells samples of one class apart."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def scatter_ratio(seen: Tensor, y: Tensor) -> float:
    """tr(S_within) / tr(S_total), 0 to 1: unlike WCC's penalty it does not fall when everything merely shrinks."""
    rows = seen.detach().flatten(1).double()
    _, index = torch.unique(y, return_inverse=True)
    member = one_hot(index).to(rows.dtype)
    means = (member / member.sum(0)).T @ rows
    within = (rows - means[index]).square().sum()
    return float(within / (rows - rows.mean(0)).square().sum().clamp_min(1e-30))
