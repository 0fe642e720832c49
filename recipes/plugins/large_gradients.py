"""Notice gradients that are many times larger than those so far."""

from dataclasses import dataclass

import torch

from cutlayer.detectors import ClientContext, Detector, StepView, Watch


@dataclass(frozen=True, repr=False)
class LargeGradients(Detector):
    """Alarms where a gradient is `times` larger than the median of all before."""

    times: float = 1e6

    def watch(self, context: ClientContext) -> Watch:
        return _Watch(self.times)


class _Watch(Watch):
    def __init__(self, times: float):
        super().__init__()
        self.times, self.norms = times, torch.zeros(0)

    def look(self, look: StepView) -> None:
        norm = look.first.detach().norm().cpu().float()
        if len(self.norms) > 3 and norm > self.times * self.norms.median() > 0:
            self.alarm = f"the gradient of step {look.step} is {float(norm):.2g} long"
        self.norms = torch.cat([self.norms, norm.reshape(1)])
        self.score = 1.0

    def tensors(self):
        return {"norms": self.norms}

    def load(self, tensors):
        self.norms = tensors["norms"].clone()
        self.score = 1.0 if len(self.norms) else None
