"""Figures of a step that a device is still computing: whoever looks at them waits for it, so nobody looks before the
next step has been launched."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

Figures = Mapping[str, float]


class Awaited(Figures):
    """Figures by name. They begin to come over when this is made, and are there once somebody looks at one.

    `finish` makes of the numbers what is shown of the step, and may refuse them: who looks first is told.
    """

    def __init__(self, names: Sequence[str], values: Tensor, finish: Callable[[Figures], Figures]):
        self._names, self._finish = names, finish
        self._values, self._arrived = _sent_over(values)
        self._found: Figures | None = None

    @classmethod
    def of(cls, found: Mapping[str, Tensor | float], finish: Callable[[Figures], Figures]) -> "Awaited":
        """Of figures that lie here and there."""
        far = {name: one.detach().double().reshape(()) for name, one in found.items() if is_far(one)}  # type: ignore[union-attr]
        near = {name: float(one) for name, one in found.items() if name not in far}
        return cls(list(far), torch.stack(list(far.values())), lambda read: finish({**near, **read}))

    def _read(self) -> Figures:
        if self._found is None:
            self._arrived()
            self._found = self._finish(dict(zip(self._names, self._values.tolist(), strict=True)))
        return self._found

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def is_far(found: object) -> bool:
    """Whether it lies on a device, where looking at it is waiting for it."""
    return isinstance(found, Tensor) and not found.is_cpu


def _sent_over(values: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """These numbers on the host, and what returns once they are there."""
    if not values.is_cuda:
        return values.cpu(), lambda: None
    here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    here.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(values.device))
    return here, copied.synchronize
