"""Messages of one sample in several passes: which belong together, and what they say together.

A pass shows every sample once, in an order that is secret, behind a head that has moved and noise that is fresh. Pure
functions of rows: whoever calls them knows whose they are.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

WIDTHS = (8, 16, 32, 64, 128, 256)  # principal directions in which rows are compared: noise is in all of them alike
MOST_FOR_BASIS = 2048  # rows that the directions are taken from
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of a ridge, in units of the mean variance
SURENESS = (
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
)  # what a Gaussian's distances are divided by: real residuals have longer tails
TRIED = 1024  # samples by which ways to link are compared
AT_ONCE = 512  # rows that are compared with a whole pass together
MOST_ROUNDS, GOOD_ENOUGH = 100, 1e-6  # of conjugate gradients


class Space(NamedTuple):
    """The directions in which some rows differ most."""

    mean: Tensor
    basis: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Space":
        flat = rows.flatten(1)
        centred = flat[:MOST_FOR_BASIS] - flat.mean(0)
        width = min(max(WIDTHS), *centred.shape)
        return cls(flat.mean(0), torch.svd_lowrank(centred, width, niter=2)[2])

    def narrowed(self, width: int) -> "Space":
        return Space(self.mean, self.basis[:, :width])

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows.flatten(1) - self.mean) @ self.basis


class Link(NamedTuple):
    """From what was collected of a sample to its row in one more pass.

    What that row should be is a linear guess, how far from the guess it may lie a covariance, and both are learnt
    from samples whose rows are known. `maps` are fitted to halves of these, so that each half is linked by a map
    that has not seen it: as well, and as badly, as strangers are.
    """

    reads: Space
    space: Space
    maps: tuple[Tensor, Tensor]
    whiten: Tensor
    sureness: float

    @classmethod
    def learnt(cls, collected: Tensor, rows: Tensor, index: Tensor, odd: Tensor) -> "Link":
        """From own samples: what was `collected` of each, all `rows` of the pass, which of them is whose, and which
        samples are of the second half (copies of one are of the same)."""
        reads, space = Space.of(collected), Space.of(rows)
        known, placed = reads(collected), space(rows)
        tried = (
            cls._tried(reads.narrowed(width), space.narrowed(width), known[:, :width], placed[:, :width], index, odd)
            for width in WIDTHS
        )
        return max(tried, key=lambda found: found[1])[0]

    @classmethod
    def _tried(
        cls, reads: Space, space: Space, known: Tensor, rows: Tensor, index: Tensor, odd: Tensor
    ) -> "tuple[Link, float]":
        """A link in these directions, and how likely it holds the true ones (the mean of logarithms). `known` is what
        was collected, `rows` are those of the pass, both in these directions."""
        wanted = rows[index]
        maps, missed = min(_halves(known, wanted, odd), key=lambda found: float(found[1].square().sum()))
        covariance = missed.T @ missed / len(missed)
        covariance += 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
        whiten = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        link = cls(reads, space, maps, whiten, SURENESS[0])
        far = link._distances((wanted - missed)[:TRIED], rows @ whiten)
        right = index[:TRIED, None]
        likely = {by: float((-far / by).log_softmax(1).gather(1, right).mean()) for by in SURENESS}
        sure = max(likely, key=lambda by: likely[by])
        return link._replace(sureness=sure), likely[sure]

    def guesses(self, collected: Tensor, odd: Tensor | None = None) -> Tensor:
        """Where each sample's row should lie. With `odd` these are the samples it was learnt from."""
        first, second = (self.reads(collected) @ part for part in self.maps)
        return (first + second) / 2 if odd is None else torch.where(odd[:, None], first, second)

    def follow(self, collected: Tensor, rows: Tensor, odd: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(what stands for each sample in the pass, the row it is most likely): where several rows may be a sample's,
        their mean by how likely each is."""
        found, likeliest = [], []
        placed = self._placed(rows)
        for part in self.guesses(collected, odd).split(AT_ONCE):
            weights = (-self._distances(part, placed) / self.sureness).softmax(1)
            found.append(weights @ rows.flatten(1))
            likeliest.append(weights.argmax(1))
        return torch.cat(found).reshape(len(collected), *rows.shape[1:]), torch.cat(likeliest)

    def _placed(self, rows: Tensor) -> Tensor:
        """Where the rows of a pass lie, in deviations of a true one."""
        return self.space(rows) @ self.whiten

    def _distances(self, guesses: Tensor, placed: Tensor) -> Tensor:
        """Half the squared distance of every guess to every row."""
        return torch.cdist(guesses @ self.whiten, placed).square() / 2


def _halves(
    known: Tensor, wanted: Tensor, odd: Tensor, strengths: Sequence[float] = STRENGTHS
) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
    """For each strength a ridge from the even samples, one from the odd, and by how much each misses the others."""
    sides = (_ridges(known[one], wanted[one], strengths) for one in (~odd, odd))
    for even_map, odd_map in zip(*sides, strict=True):
        yield (even_map, odd_map), wanted - torch.where(odd[:, None], known @ even_map, known @ odd_map)


def _ridges(known: Tensor, wanted: Tensor, strengths: Sequence[float]) -> Iterator[Tensor]:
    gram, target = known.T @ known, known.T @ wanted
    for strength in strengths:
        scale = (gram.diagonal().mean() * strength).clamp_min(1e-12)
        yield torch.linalg.solve(gram + scale * torch.eye(len(gram)).to(gram), target)


def shared_rows(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Different rows among those that stand for samples, and which is whose."""
    flat, index = seen.flatten(1).unique(dim=0, return_inverse=True)
    return flat.reshape(-1, *seen.shape[1:]), index


def taken_apart(passes: Sequence[tuple[Tensor, Tensor]], samples: int, damping: float = 0.0) -> Tensor:
    """One row a sample from passes (rows, which of them stands for each of the first samples) of which every row is
    the mean of those samples that it stands for: least squares.

    Where every sample has a row of its own, that is the mean over the passes. `damping` pulls towards the mean.
    """
    flat = [(rows.flatten(1) - rows.flatten(1).mean(0), index) for rows, index in passes]
    sizes = [index.bincount(minlength=len(rows)).clamp_min(1).to(rows)[:, None] for rows, index in flat]

    def back(parts: Sequence[Tensor]) -> Tensor:
        total = parts[0].new_zeros(samples, parts[0].shape[1])
        for part, size, (_, index) in zip(parts, sizes, flat, strict=True):
            total[: len(index)] += (part / size)[index]
        return total

    def normal(z: Tensor) -> Tensor:
        means = [
            torch.zeros_like(rows).index_add_(0, index, z[: len(index)]) / size
            for size, (rows, index) in zip(sizes, flat, strict=True)
        ]
        return back(means) + damping * z

    solved = _solve(normal, back([rows for rows, _ in flat]))
    centre = torch.stack([rows.flatten(1).mean(0) for rows, _ in passes]).mean(0)
    return (solved + centre).reshape(samples, *passes[0][0].shape[1:])


def _solve(normal: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    """Conjugate gradients from 0: of all solutions the shortest."""
    z, left = torch.zeros_like(wanted), wanted.clone()
    way, size = left.clone(), left.square().sum()
    first = size.clamp_min(1e-30)
    for _ in range(MOST_ROUNDS):
        if size <= GOOD_ENOUGH**2 * first:
            break
        ahead = normal(way)
        step = size / (way * ahead).sum()
        z, left = z + step * way, left - step * ahead
        before, size = size, left.square().sum()
        way = left + size / before * way
    return z
