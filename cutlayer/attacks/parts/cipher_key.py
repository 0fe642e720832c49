"""A table of words as a substitution cipher: which rows are the same symbol, and which word each stands for."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...metrics.text_readers import set_apart

NEAR = 0.3  # of the distance between two rows taken at random: rows that are nearer are one symbol
AT_ONCE = 2048  # rows that are compared at once
COMMON = 24  # kinds of rows by which two places are compared
GAPS = (1, 2)  # neighbours by which words are known: next to each other, and with one between
SMOOTHED = 0.5  # of a neighbour that was never seen, in counts
BY_NEIGHBOURS, BY_COUNT = 4.0, 0.5  # how much likeness of neighbours counts, and of how often a word is written
ENOUGH, ENOUGH_OF_COUNT = 200.0, 30.0  # sightings beyond which a symbol is known no better


class Symbols(NamedTuple):
    """(texts, length) which rows are alike; what each of these symbols looks like; and what every place adds."""

    told: Tensor
    looks: Tensor
    places: Tensor


def symbols(lines: Tensor, most: int) -> Symbols:
    """Rows of a word and its place, of which neither is known: z = E[word] + P[place].

    Raises where there are more than `most` symbols: then rows of one word do not repeat.
    """
    near = NEAR * float(torch.stack([torch.pdist(rows[:64]).median() for rows in lines.transpose(0, 1)]).median())
    told, _ = _kinds((lines - _between_places(lines, near)).flatten(0, 1), near, most)
    # With symbols known, places are set apart exactly.
    _, looks, places = found = _apart(lines, told.unflatten(0, lines.shape[:2]))
    return found._replace(told=read_symbols(lines, looks, places))


def _apart(lines: Tensor, told: Tensor) -> Symbols:
    apart = set_apart(lines, told)
    return Symbols(told, apart.tokens, apart.places)


def _kinds(rows: Tensor, near: float, most: int) -> tuple[Tensor, Tensor]:
    """For each row the number of its kind, and the first row of every kind; rows nearer than `near` are of one."""
    firsts, found = rows[:0], []
    for chunk in rows.split(AT_ONCE):
        own = torch.full((len(chunk),), -1, device=rows.device)
        if len(firsts):
            distance, place = torch.cdist(chunk, firsts).min(1)
            own = torch.where(distance < near, place, own)
        while (left := (own < 0).nonzero().flatten()).numel():
            if len(firsts) == most:
                raise ValueError(
                    f"these rows are of more than {most} kinds, so those of one word are not alike: attention, noise "
                    "or rounding lies between"
                )
            own[left[(chunk[left] - chunk[left[0]]).norm(dim=1) < near]] = len(firsts)
            firsts = torch.cat([firsts, chunk[left[:1]]])
        found.append(own)
    return torch.cat(found), firsts


def _between_places(lines: Tensor, near: float) -> Tensor:
    """(length, numbers): how far every place is from the first. Common words stand at all of them, so one difference
    between the common rows of two places is there many times. (Means would not do: texts end, and padding begins.)"""
    found, known = [], _common(lines[:, 0], near)
    for rows in lines.unbind(1):
        here = _common(rows, near)
        apart = (here.rows[:, None] - known.rows).flatten(0, 1)
        weight = torch.minimum(here.counts[:, None], known.counts).flatten()
        alike = (torch.cdist(apart, apart) < near) * weight
        agreeing = alike[(alike.sum(1) * weight).argmax()]
        found.append((agreeing[:, None] * apart).sum(0) / agreeing.sum())
        moved = _Common(torch.cat([known.rows, here.rows - found[-1]]), torch.cat([known.counts, here.counts]))
        known = _merged(moved, near)
    return torch.stack(found)


class _Common(NamedTuple):
    rows: Tensor
    counts: Tensor


def _common(rows: Tensor, near: float) -> _Common:
    return _merged(_Common(rows, torch.ones_like(rows[:, 0])), near)


def _merged(some: _Common, near: float) -> _Common:
    """The commonest kinds of these rows."""
    own, firsts = _kinds(some.rows, near, len(some.rows))
    counts = torch.zeros_like(firsts[:, 0]).index_add(0, own, some.counts)
    best = counts.argsort(descending=True, stable=True)[:COMMON]
    return _Common(firsts[best], counts[best])


def read_symbols(lines: Tensor, looks: Tensor, places: Tensor) -> Tensor:
    rows = (lines - places).flatten(0, 1).split(AT_ONCE)
    return torch.cat([torch.cdist(some, looks).argmin(1) for some in rows]).unflatten(0, lines.shape[:2])


def words_of(seen: Tensor, known: Tensor, most: int, anchors: int, rounds: int) -> Tensor:
    """For each symbol of `seen` the word of `known` that is used like it: as often, and next to the same others.

    It begins with ranks by frequency. Each round knows the commonest symbols better and takes more of them, up to
    `anchors`, for neighbours that tell the others apart. The `most` common ones are told so, the rest by rank.
    """
    ours, theirs = _Usage(seen, most), _Usage(known, most)
    key = torch.zeros(int(seen.max()) + 1, dtype=torch.long, device=seen.device)
    ranked = min(len(ours.ranks), len(theirs.ranks))
    key[ours.ranks[:ranked]] = theirs.ranks[:ranked]
    symbols, words = ours.ranks[:most], theirs.ranks[:most]
    for number in range(rounds):
        few = min(len(symbols), len(words), max(20, anchors * (number + 1) // rounds))
        alike = _alike(ours, theirs, symbols[:few], key[symbols[:few]])
        key[symbols] = words[_one_to_one(alike)]
    taken = torch.isin(theirs.ranks, key[symbols])
    left, over = ours.ranks[len(symbols) :], theirs.ranks[~taken]
    count = min(len(left), len(over))
    key[left[:count]] = over[:count]
    return key


class _Usage:
    """How often each token is written, and next to which others."""

    def __init__(self, texts: Tensor, most: int):
        counts = texts.flatten().bincount().double()
        self.ranks = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        self.counts = counts
        common = self.ranks[:most]
        self.number = torch.full((len(counts),), -1, device=texts.device)
        self.number[common] = torch.arange(len(common), device=texts.device)
        self.common, self.pairs = common, []
        for gap in GAPS:
            after = _pairs(self.number[texts[:, :-gap]].flatten(), self.number[texts[:, gap:]].flatten(), len(common))
            self.pairs += [after, after.T]

    def neighbours(self, anchors: Tensor) -> Tensor:
        """(common tokens, anchors on all sides): roots of shares, so that a product is how alike two are."""
        share = SMOOTHED * self.counts[anchors] / self.counts.sum()
        which = self.number[anchors]
        found = [(pairs[:, which] + share) / (pairs.sum(1, keepdim=True) + SMOOTHED) for pairs in self.pairs]
        rows = torch.cat(found, 1).sqrt()
        return (rows / rows.norm(dim=1, keepdim=True)).float()


def _pairs(one: Tensor, two: Tensor, count: int) -> Tensor:
    both = (one >= 0) & (two >= 0)
    return (one[both] * count + two[both]).bincount(minlength=count**2).reshape(count, count).double()


def _alike(ours: _Usage, theirs: _Usage, symbols: Tensor, words: Tensor) -> Tensor:
    """(common symbols, common words): the higher, the more alike. Anchors are pairs of a symbol and its word."""
    known = torch.isin(words, theirs.common)
    like = (ours.neighbours(symbols[known]) @ theirs.neighbours(words[known]).T).clamp_min(1e-9).log()
    often, theirs_often = (
        (usage.counts[usage.common] / usage.counts.sum()).log().float() for usage in (ours, theirs)
    )
    sighted = ours.counts[ours.common].float()[:, None]
    by_count = (often[:, None] - theirs_often).square() * sighted.clamp_max(ENOUGH_OF_COUNT).sqrt()
    return BY_NEIGHBOURS * like * sighted.clamp_max(ENOUGH).sqrt() - BY_COUNT * by_count


def _one_to_one(alike: Tensor) -> Tensor:
    """For each row a column of its own while there are any, the first rows first: they are known best."""
    alike, chosen = alike.clone(), []
    for place, row in enumerate(alike):
        best = int(row.argmax())
        chosen.append(best)
        if place + 1 < alike.shape[1]:
            alike[:, best] = -torch.inf
    return torch.tensor(chosen, device=alike.device)
