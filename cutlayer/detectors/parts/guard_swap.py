"""Another guard in the middle of a run: only where the server's half stays as it is, for no server is told."""

import torch
from torch import nn

from ...core.batch import Task
from ...core.guard import GuardModule, Shape
from ...guards.base import Guard


def swap_guard(
    old: Guard, new: Guard, shape: Shape, *, public: int, private: int, task: Task, device: torch.device | str = "cpu"
) -> GuardModule:
    """The client's module of `new`, in the place of `old`; a ValueError says why where that cannot be."""
    why = _why_not(old, new, shape, public)
    modules = [one.build(shape, public, private, task) for one in (old, new)] if not why else []
    if not why and any(list(one.parameters()) or one.state_dict() for one in modules):
        why = "it has weights of its own, which the optimizer and other clients would not know"
    if why:
        raise ValueError(
            f"{new!r} cannot take the place of {old!r} while a run goes on: {why}. A ladder has guards without a "
            "server's half and without weights, such as Noise or Gaussian, each stronger than the one before"
        )
    return modules[1].to(device)


def _why_not(old: Guard, new: Guard, shape: Shape, public: int) -> str:
    if old.out_shape(shape) != new.out_shape(shape):
        return f"it would send {new.out_shape(shape)}, and the server reads {old.out_shape(shape)}"
    if new.reads_gradients or old.reads_gradients:
        return "it changes how the client learns"
    if old.exchange or new.exchange or not _alike(old.lift(shape, public), new.lift(shape, public)):
        return "the server has another half of it, and has agreed to its plan"
    if (old.fan_out, old.holds_back) != (new.fan_out, new.holds_back):
        return "what comes back would be read in another way"
    if new.least_batch > old.least_batch:
        return f"it needs {new.least_batch} samples at a time, and the run was prepared for {old.least_batch}"
    return ""


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules, built from one seed, are the same."""
    mine, theirs = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (one, other))
    return (
        repr(one) == repr(other)
        and mine.keys() == theirs.keys()
        and all(torch.equal(t, theirs[name]) for name, t in mine.items())
    )
