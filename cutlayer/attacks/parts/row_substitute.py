"""A substitute for a client's head that reads records or series, built from the shape of the cut alone."""

from math import prod

from torch import Tensor, nn

from ...core.guard import Shape


class RowSubstitute(nn.Module):
    """Records or series to activations of the given shape.

    Series to series along time, with pools down to the length of the cut; anything else through linear layers. What
    comes in is standardised by its batch, and nothing negative comes out where the client sends nothing negative.
    """

    def __init__(self, rows: Shape, cut: Shape, width: int, signed: bool):
        super().__init__()
        along = len(rows) == 2 and len(cut) == 2
        layers = _along_time(rows, cut, width) if along else _linear(rows, cut, width)
        self.layers = nn.Sequential(*layers, *([] if signed else [nn.ReLU()]))

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows)


def _linear(rows: Shape, cut: Shape, width: int) -> list[nn.Module]:
    hidden = max(width, prod(cut))
    return [
        nn.Flatten(), nn.BatchNorm1d(prod(rows)), nn.Linear(prod(rows), hidden), nn.ReLU(),
        nn.Linear(hidden, prod(cut)), nn.BatchNorm1d(prod(cut)), nn.Unflatten(1, cut),
    ]  # fmt: skip


def _along_time(rows: Shape, cut: Shape, width: int) -> list[nn.Module]:
    hidden = max(width, cut[0])
    return [
        nn.BatchNorm1d(rows[0]), nn.Conv1d(rows[0], hidden, 5, padding=2), nn.ReLU(),
        nn.Conv1d(hidden, cut[0], 5, padding=2, bias=False), nn.BatchNorm1d(cut[0]), nn.AdaptiveMaxPool1d(cut[1]),
    ]  # fmt: skip
