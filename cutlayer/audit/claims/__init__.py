"""Headlines of five papers, and one of ours, as experiments that anybody can run: one file a paper, one entry a headline."""

from . import fora, gate, guards, kd_ufsl, lfq, lightsplit, prism, seal, training, watch
from .base import Experiment, names_of

EXPERIMENTS: dict[str, Experiment] = names_of(
    [
        *lightsplit.EXPERIMENTS,
        *seal.EXPERIMENTS,
        *fora.EXPERIMENTS,
        *kd_ufsl.EXPERIMENTS,
        *lfq.EXPERIMENTS,
        *prism.EXPERIMENTS,
        *training.EXPERIMENTS,
        *watch.EXPERIMENTS,
        *guards.EXPERIMENTS,
        *gate.EXPERIMENTS,
    ]
)
