"""DP-SGD on the client: its weights learn from clipped, noised per-sample gradients. What leaves is not touched."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from .base import Guard, Release
from .parts.calibration import gaussian_multiplier, in_run, sampled_multiplier
from .parts.noise import draw

# Replacing a record takes one clipped gradient out of the sum and puts another in: so many clips at most.
MOVES = 2


@dataclass(frozen=True, repr=False)
class DPSGD(Guard):
    """Clipped and noised per-sample gradients for the client's weights. What leaves is not protected. Client only.

    Abadi et al. (2016), Alg. 1: each sample's gradient over all of the client's weights is cut to length `clip`, and
    noise N(0, (noise·clip)²) joins their sum. The gradient is clipped as if the loss were this sample's alone (it is
    a mean over the batch). This bounds what *weights* tell; what leaves for a sample is a function of it, as before.
    One backward pass a step.

    With `epsilon` the noise follows: the least whose (ε, δ) over the epochs of the plan is this, one record replaced,
    a release an epoch. Papers count otherwise: batches drawn at random, a record added or left out. With `sampling`,
    the share of a client's records in a batch, the noise is theirs; the privacy ledger still says what holds here.
    """

    clip: float = 1.0
    noise: float = 1.0
    epsilon: float | None = None
    delta: float = 1e-5
    sampling: float | None = None
    epochs: int | None = field(default=None, init=False, repr=False, compare=False)  # of the plan it stands in
    client_only: ClassVar[bool] = True
    reads_gradients: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    no_claim: ClassVar[str] = (
        "none for what leaves: only the client's weights are learnt with clipped and noised gradients"
    )
    search: ClassVar[Search] = {"clip": Between(0.1, 10.0, log=True), "noise": Between(0.1, 4.0, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.clip, int | float) or not 0 < self.clip < float("inf"):
            raise ValueError(f"DPSGD's clip is the longest a sample's gradient may be, above 0; got {self.clip!r}")
        if not isinstance(self.noise, int | float) or not 0 <= self.noise < float("inf"):
            raise ValueError(f"DPSGD's noise is in units of clip, a number from 0 up; got {self.noise!r}")
        if self.epsilon is not None and self.noise != type(self).noise:
            raise ValueError("DPSGD takes either noise or epsilon, from which the noise follows: leave one out")
        if self.epsilon is not None and (
            not isinstance(self.epsilon, int | float) or not 0 < self.epsilon < float("inf")
        ):
            raise ValueError(f"DPSGD's epsilon is a number above 0 (∞ is noise=0.0); got {self.epsilon!r}")
        if not isinstance(self.delta, float) or not 0 < self.delta < 1:
            raise ValueError(f"DPSGD's delta is a probability well below 1/samples, e.g. 1e-5; got {self.delta!r}")
        if self.sampling is not None and (self.epsilon is None or not 0 < self.sampling < 1):
            raise ValueError(
                "DPSGD's sampling is the share of a client's records in a batch, above 0 and below 1, beside an "
                f"epsilon; got {self.sampling!r}"
            )

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return PerSample(private)

    def attach(self, optimizer: torch.optim.Optimizer, client: nn.Module) -> None:
        watchers = [module for module in client.modules() if isinstance(module, PerSample)]
        assert len(watchers) == 1  # two of them in a chain are refused when it is written
        _refuse_what_mixes_or_learns_alone(self, client)
        for unit in units(client):
            # A method, not a closure: in a deep copy of the client the hook then belongs to the copy.
            unit.register_forward_hook(watchers[0].watch, with_kwargs=True)
        step = _Step(self, client, watchers[0])
        optimizer.register_step_pre_hook(step)

    def over(self, epochs: int) -> "DPSGD":
        return in_run(self, epochs) if self.epsilon is not None else self

    @property
    def multiplier(self) -> float:
        """The noise in units of clip."""
        if self.epsilon is None:
            return self.noise
        if self.epochs is None:
            raise ValueError(f"{self}: its noise follows from the epochs of a run: give it to a Plan")
        if self.sampling is not None:
            return sampled_multiplier(self.epsilon, self.delta, self.sampling, self.epochs)
        return MOVES * gaussian_multiplier(self.epsilon, self.delta, self.epochs)

    def releases_weights(self) -> Release:
        return Release("gaussian", self.multiplier / MOVES)


class Use(NamedTuple):
    """A layer that was used: what went in, and the gradient of the loss at what came out."""

    unit: nn.Module
    inputs: tuple[Tensor, ...]
    cotangent: Tensor


class PerSample(GuardModule):
    """Passes z on, and collects what per-sample gradients are made of.

    Inputs live in the graph's own hooks, so they go when the graph goes: nothing is kept of a forward pass without a
    backward pass (predictions, audits, copies).
    """

    takes_gradients_apart = True

    def __init__(self, private: int):
        super().__init__()
        self.private, self.seed, self.samples = private, 0, 0
        self.uses: list[Use] = []
        self.busy = False

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if self.training and torch.is_grad_enabled():
            self.uses.clear()  # of a backward pass that no step followed
            self.seed, self.samples = batch.seed, len(batch)
        return Guarded(z)

    def watch(self, unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.busy or not unit.training or not torch.is_grad_enabled():
            return
        if not any(parameter.requires_grad for parameter in unit.parameters()):
            return  # a frozen client learns nothing that samples could be seen in
        if kwargs or not all(isinstance(value, Tensor) for value in (*args, output)):
            raise ValueError(
                f"DPSGD cannot take the gradient of {type(unit).__name__} apart: it needs layers that read and give "
                "tensors alone; freeze that part or leave DPSGD out"
            )
        inputs = tuple(value.detach() for value in args)
        # Not retain_grad: behind an in-place ReLU that would give the gradient of what came out of the ReLU.
        output.register_hook(lambda cotangent: self.uses.append(Use(unit, inputs, cotangent.detach())))

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """For every weight that was used, each sample's own gradient: samples x the weight's shape."""
        found: dict[nn.Parameter, Tensor] = {}
        self.busy = True
        try:
            for use in self.uses:
                self._check(use)
                for name, each in per_sample_gradients(use).items():
                    weight, each = use.unit.get_parameter(name), self.samples * each
                    found[weight] = found[weight] + each if weight in found else each
        finally:
            self.busy = False
            self.uses.clear()
        return found

    def _check(self, use: Use) -> None:
        rows = {len(value) if value.dim() else 0 for value in (*use.inputs, use.cotangent)}
        if rows != {self.samples}:
            raise ValueError(
                f"DPSGD cannot tell samples apart in {type(use.unit).__name__}: it was given {sorted(rows)} rows for "
                f"{self.samples} samples; freeze that part or leave DPSGD out"
            )


def per_sample_gradients(use: Use) -> dict[str, Tensor]:
    """∂⟨cotangent row, output row⟩/∂weight for each row, by the weight's name in its unit."""
    weights = {name: p.detach() for name, p in use.unit.named_parameters() if p.requires_grad}

    def pulled(weights: dict[str, Tensor], cotangent: Tensor, *inputs: Tensor) -> Tensor:
        output = functional_call(use.unit, weights, tuple(value.unsqueeze(0) for value in inputs))
        return (output.squeeze(0) * cotangent).sum()

    rows = (0,) * (1 + len(use.inputs))
    return vmap(grad(pulled), in_dims=(None, *rows))(weights, use.cotangent, *use.inputs)


def clipped_sum(gradients: list[Tensor], clip: float) -> tuple[list[Tensor], Tensor]:
    """(Σ over samples of gradients cut to length `clip`, which were cut); one length a sample over all tensors."""
    squares = [each.flatten(1).double().square().sum(1) for each in gradients]
    length = torch.stack(squares).sum(0).sqrt()
    factor = (clip / length).clamp(max=1.0)
    summed = [torch.tensordot(factor.to(each.dtype), each, dims=1) for each in gradients]
    return summed, length > clip


def units(client: nn.Module) -> Iterator[nn.Module]:
    """The smallest modules that hold trainable weights themselves, with all that is below them."""
    taken: set[nn.Module] = set()
    for module in client.modules():  # from the outside in
        own = any(p.requires_grad for p in module.parameters(recurse=False))
        if own and module not in taken:
            taken.update(module.modules())
            yield module


class _Step:
    """Runs before every optimizer step: in place of the gradient, the clipped and noised one."""

    def __init__(self, spec: DPSGD, client: nn.Module, watcher: PerSample):
        self.spec, self.client, self.watcher = spec, client, watcher
        self.multiplier = spec.multiplier
        self.checked = False

    @torch.no_grad()
    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        found = self.watcher.gradients()
        weights = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        names = {p: name for name, p in self.client.named_parameters()}
        count, clip, multiplier = self.watcher.samples, self.spec.clip, self.multiplier
        if not weights:
            return
        missed = [p for p in weights if p not in found]
        if not missed and not self.checked:
            missed, self.checked = _not_all_of(found, weights), True
        if missed:
            raise ValueError(
                f"DPSGD sees only a part of the gradient of {names[missed[0]]}, so nothing would be bounded: use "
                "each weight through its own layer, or freeze that part"
            )
        summed, cut = clipped_sum([found[p] for p in weights], clip)
        for p, total in zip(weights, summed, strict=True):
            if multiplier:
                noise = draw("gaussian", total, self.watcher.private, "gradient noise", self.watcher.seed, names[p])
                total = total + (multiplier * clip * noise).to(total)
            p.grad = (total / count).to(p.dtype)
        guard = self.client.get_submodule("guard")  # the whole chain: its notes are what the history shows
        assert isinstance(guard, GuardModule)
        guard.notes["clipped gradients"] = float(cut.double().mean())


def _not_all_of(found: dict[nn.Parameter, Tensor], weights: list[nn.Parameter]) -> list[nn.Parameter]:
    """Weights whose gradient is more than their samples' gradients together; rounding is far below this."""
    size = torch.stack([found[p].norm() for p in weights]).norm()
    whole = {p: p.grad for p in weights if p.grad is not None}
    return [p for p in weights if (found[p].mean(0) - whole[p]).norm() > 1e-3 * whole[p].norm() + 1e-5 * size]


def _refuse_what_mixes_or_learns_alone(spec: DPSGD, client: nn.Module) -> None:
    for name, part in client.named_children():
        if not any(p.requires_grad for p in part.parameters()):
            continue
        if name == "guard":
            raise ValueError(
                f"{spec} noises the gradients of head and tail, but a guard beside it has weights of its own, which "
                "would learn without noise: leave one of them out"
            )
        for inner, module in part.named_modules():
            if isinstance(module, _BatchNorm):
                raise ValueError(
                    f"{spec} needs each sample's own gradient, and {name}.{inner} ({type(module).__name__}) mixes "
                    f"the samples of a batch: take the network with norm='group', or freeze the {name}"
                )
    for unit in units(client):
        dropping = [m for m in unit.modules() if isinstance(m, _DropoutNd) and m.p]
        if dropping:
            raise ValueError(
                f"{spec} would draw other dropout masks than the forward pass in {type(unit).__name__}, whose "
                "weights are not in layers of their own: set the dropout to 0 or leave DPSGD out"
            )
