"""From an activation to a few numbers and back: small networks for every shape of a cut, sized by what they cost."""

from math import prod

from torch import Tensor, nn

from ...core.guard import Shape

WIDEST, STEP = 128, 8  # of an encoder: channels at most, and the steps in which it gets narrower
POOLED = 16  # positions that a sequence or series is brought down to, at most
RANK = 64  # numbers a position that a lift makes of each row of a sequence or series


def encoder(shape: Shape, numbers: int, width: int) -> nn.Sequential:
    """`numbers` for each activation of this shape, through hidden layers of `width` (0: one linear layer).

    Maps pass three convolutions that make them four times smaller. Of two dimensions (channels and length, or tokens
    and width) each is mixed by a layer of its own, so that it does not matter which is which.
    """
    if not width:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), numbers))
    if len(shape) == 3:
        layers, sizes = list[nn.Module](), _map_sizes(shape)
        for channels, stride in ((shape[0], 2), (width, 1), (width, 2)):
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * prod(sizes[-1]), numbers))
    if len(shape) == 2:
        rows, columns = width, _positions(shape)
        mixed: list[nn.Module] = [nn.Conv1d(shape[0], rows, 1, bias=False), nn.BatchNorm1d(rows), nn.ReLU(), Turned()]
        mixed += [nn.Conv1d(shape[1], columns, 1, bias=False), nn.BatchNorm1d(columns), nn.ReLU()]
        return nn.Sequential(*mixed, nn.Flatten(), nn.Linear(rows * columns, numbers))
    flat = [nn.Flatten(), nn.Linear(prod(shape), width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*flat, nn.Linear(width, numbers))


def multiply_accumulates(shape: Shape, numbers: int, width: int) -> int:
    """Of such an encoder, for one sample."""
    if not width:
        return prod(shape) * numbers
    if len(shape) == 3:
        sizes = _map_sizes(shape)
        inside = sum(9 * c * width * prod(side) for c, side in zip((shape[0], width, width), sizes, strict=True))
        return inside + width * prod(sizes[-1]) * numbers
    if len(shape) == 2:
        positions = _positions(shape)
        return prod(shape) * width + shape[1] * positions * width + width * positions * numbers
    return prod(shape) * width + width * numbers


def widest(shape: Shape, numbers: int, budget: int) -> int:
    """The width of the widest encoder within a budget of multiply-accumulates; 0 where only a linear layer is."""
    fitting = (w for w in range(WIDEST, 0, -STEP) if multiply_accumulates(shape, numbers, w) <= budget)
    return next(fitting, 0)


def lift(shape: Shape, numbers: int, hidden: int) -> nn.Sequential:
    """An activation of this shape from `numbers`."""
    start = [nn.Linear(numbers, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    if len(shape) == 2 and shape[1] > RANK:  # a weight for every number of a long text would be millions
        return nn.Sequential(
            *start, nn.Linear(hidden, shape[0] * RANK), nn.Unflatten(1, (shape[0], RANK)), nn.Linear(RANK, shape[1])
        )
    return nn.Sequential(*start, nn.Linear(hidden, prod(shape)), nn.Unflatten(1, shape))


class Turned(nn.Module):
    """Rows become columns."""

    def forward(self, z: Tensor) -> Tensor:
        return z.transpose(1, 2)


def _map_sizes(shape: Shape) -> list[Shape]:
    """Of the maps behind each convolution."""
    half = tuple((side + 1) // 2 for side in shape[1:])
    return [half, half, tuple((side + 1) // 2 for side in half)]


def _positions(shape: Shape) -> int:
    return min(shape[1], POOLED)
