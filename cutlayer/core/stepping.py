"""A walk through autograd, and a step of an optimizer, in few calls.

torch's own wraps the same arithmetic in ten times as much: hooks, profiling, one call for every tensor. The step of a
small network hardly computes longer. Of a large one it is the memory that takes its time: networks whose last digits
nobody promises (readers, attackers) step in one pass over it.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torchs

Group = dict[str, Any]
Kept = list[dict[str, Any]]  # of every parameter: what is remembered from step to step
Ready = tuple[list[Tensor], list[Tensor], Kept]  # parameters that have a gradient, these, what is kept of them
_TOGETHER = 1 << 18  # numbers of one kind that are stepped in one pass after the other, at most
# What can be asked of an optimizer that torch does in another way.
_ASKED = (
    "maximize",
    "differentiable",
    "foreach",
    "fused",
    "capturable",
    "amsgrad",
    "decoupled_weight_decay",
    "dampening",
)

_IS_SPARSE, _IS_HERE = attrgetter("is_sparse"), attrgetter("is_cpu")


def backward(result: Tensor, gradient: Tensor | None = None) -> None:
    """`result.backward(gradient)` without the wrapping, which is for compilers and other tensors.

    On a GPU autograd has a thread of its own, and the server's pass would run there beside ours: the two would wait
    for Python in turns. Whoever asks walks by itself; the operations and their order are the same.
    """
    if type(result) is not Tensor or not (result.is_cpu or result.is_cuda):
        result.backward(gradient)
        return
    given = torch.ones_like(result) if gradient is None and result.numel() == 1 else gradient
    if result.is_cpu:
        _walk(result, given)
        return
    with torch.autograd.set_multithreading_enabled(False):
        _walk(result, given)


def _walk(result: Tensor, given: Tensor | None) -> None:
    torch.autograd.Variable._execution_engine.run_backward(
        (result,), (given,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`, bit for bit; SGD and Adam on the CPU, and SGD on a GPU, without the wrapping."""
    way = _WAYS.get(type(optimizer))
    if way is None or _is_watched(optimizer) or not all(_is_usual(group) for group in optimizer.param_groups):
        optimizer.step()
        return
    ready = [_ready(optimizer, group) for group in optimizer.param_groups]
    if None in ready:
        optimizer.step()  # the first step, which begins what is kept; or tensors of another kind
        return
    with torch.no_grad():
        for group, found in zip(optimizer.param_groups, ready, strict=True):
            if found and found[0]:
                for some in _by_caches(*found):
                    way(group, *some)


def adam(parameters: Iterable[Tensor], rate: float, **asked: Any) -> torch.optim.Adam:
    """Adam in one pass over memory, for attackers and readers: it rounds otherwise than torch does by itself."""
    return torch.optim.Adam(list(parameters), rate, fused=True, **asked)


def adamw(parameters: Iterable[Tensor], rate: float, decay: float = 0.0) -> torch.optim.AdamW:
    """The same with a decay of weights."""
    return torch.optim.AdamW(list(parameters), rate, weight_decay=decay, fused=True)


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    own = (
        optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    )  # guards hang themselves in here
    return bool(own or torchs._global_optimizer_pre_hooks or torchs._global_optimizer_post_hooks)


def _is_usual(group: Group) -> bool:
    """Whether a step is plain descent in Python floats: nothing was asked for that torch does in another way."""
    return type(group["lr"]) is float and not any(map(group.get, _ASKED))


def _ready(optimizer: torch.optim.Optimizer, group: Group) -> Ready | None:
    """What a step of them takes; None: leave it to torch."""
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters]
    if any(map(_IS_SPARSE, gradients)) or any(map(Tensor.is_complex, gradients)):
        return None
    if not all(map(_IS_HERE, gradients)) and not _lie_together(group, gradients):
        return None
    if not group.get("betas") and not group["momentum"]:
        return parameters, gradients, []
    kept = [optimizer.state.get(parameter) for parameter in parameters]
    if not all(kept):
        return None
    return parameters, gradients, kept  # type: ignore[return-value]


def _by_caches(parameters: list[Tensor], gradients: list[Tensor], kept: Kept) -> Iterator[Ready]:
    """All of them at once on a GPU, or where they are few numbers; else some after the others. An optimizer passes
    over its numbers several times, and takes them from memory each time where they are more than the caches hold."""
    sizes = [parameter.numel() for parameter in parameters]
    if sum(sizes) <= _TOGETHER or not parameters[0].is_cpu:
        yield parameters, gradients, kept
        return
    first = 0
    while first < len(sizes):
        last, numbers = first + 1, sizes[first]
        while last < len(sizes) and numbers + sizes[last] <= _TOGETHER:
            numbers += sizes[last]
            last += 1
        yield parameters[first:last], gradients[first:last], kept[first:last]
        first = last


def _lie_together(group: Group, gradients: list[Tensor]) -> bool:
    """Whether all are alike on one GPU, where torch by itself steps all of a kind at once as well.

    Adam never comes here with tensors of a GPU: its counters are there too then, which `_is_usual` knows.
    """
    kinds = {(one.device, one.dtype) for one in (*group["params"], *gradients)}
    return len(kinds) == 1 and gradients[0].is_cuda and group.get("foreach") is None


def _sgd(group: Group, parameters: list[Tensor], gradients: list[Tensor], kept: Kept) -> None:
    if group["weight_decay"]:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])  # type: ignore[assignment]
    if kept:
        moved = [one["momentum_buffer"] for one in kept]
        torch._foreach_mul_(moved, group["momentum"])
        torch._foreach_add_(moved, gradients)
        ahead = group["momentum"] if group["nesterov"] else None
        gradients = moved if ahead is None else torch._foreach_add(gradients, moved, alpha=ahead)  # type: ignore[assignment]
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def _adam(group: Group, parameters: list[Tensor], gradients: list[Tensor], kept: Kept) -> None:
    (beta1, beta2), first, second = (
        group["betas"],
        *([one[name] for one in kept] for name in ("exp_avg", "exp_avg_sq")),
    )
    if group["weight_decay"]:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])  # type: ignore[assignment]
    torch._foreach_add_(steps := [one["step"] for one in kept], 1)
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    under = torch._foreach_sqrt(second)
    counts = [one.item() for one in steps]
    torch._foreach_div_(under, [(1 - beta2**count) ** 0.5 for count in counts])
    torch._foreach_add_(under, group["eps"])
    torch._foreach_addcdiv_(parameters, first, under, [-(group["lr"] / (1 - beta1**count)) for count in counts])


_WAYS: dict[type, Callable[[Group, list[Tensor], list[Tensor], Kept], None]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
}
