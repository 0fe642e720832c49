"""Small clients are given samples by others until everyone has a minimum, within what a partition promises.

`owner` says whose each sample is; who cannot be served gets None.
"""

import numpy as np
import torch
from torch import Tensor


def any_samples(owner: Tensor, clients: int, minimum: int, random: np.random.Generator) -> Tensor:
    """The smallest client gets some of the largest one's samples, by lot."""
    owner = owner.clone()
    while (sizes := owner.bincount(minlength=clients)).min() < minimum:
        small, large = int(sizes.argmin()), int(sizes.argmax())
        # No more than makes them equal: the largest may give to several.
        given = min(minimum - int(sizes[small]), max(1, int(sizes[large] - sizes[small]) // 2))
        rows = random.permutation((owner == large).nonzero().flatten().numpy())[:given]
        owner[torch.from_numpy(rows)] = small
    return owner


def of_own_labels(owner: Tensor, y: Tensor, clients: int, minimum: int, draw: torch.Generator) -> Tensor | None:
    """Samples of labels that a client holds already, and nobody gives its last one away: all hold what they held.

    Who has some to spare may share no label with the client that lacks them. Then they go by way of others: each
    gives of one label what it gets of another (a maximum flow by shortest augmenting paths, Edmonds and Karp 1972).
    """
    owner, labels = owner.clone(), int(y.max()) + 1
    while True:
        table = (owner * labels + y).bincount(minlength=clients * labels).reshape(clients, labels)
        sizes = table.sum(1)
        small = int(sizes.argmin())
        if sizes[small] >= minimum:
            return owner
        way = _way_from_surplus(table, small, minimum)
        if way is None:
            return None
        given = min(minimum - int(sizes[small]), int(sizes[way[-1][0]]) - minimum)
        given = min(given, *(int(table[giver, label]) - 1 for giver, label, _ in way))
        for giver, label, taker in way:
            rows = ((owner == giver) & (y == label)).nonzero().flatten()
            owner[rows[torch.randperm(len(rows), generator=draw)[:given]]] = taker


def _way_from_surplus(table: Tensor, small: int, minimum: int) -> list[tuple[int, int, int]] | None:
    """(giver, label, taker) from `small` back to the nearest client with samples to spare; of equals, the largest."""
    sizes, came = table.sum(1), {small: (small, 0)}
    reached = [small]
    while reached:
        found = list[int]()
        for taker in reached:
            for giver, label in ((table > 1) & (table[taker] > 0)).nonzero().tolist():
                if giver not in came:
                    came[giver] = (taker, label)
                    found.append(giver)
        spare = [client for client in found if sizes[client] > minimum]
        if spare:
            way, giver = list[tuple[int, int, int]](), max(spare, key=lambda client: int(sizes[client]))
            while giver != small:
                taker, label = came[giver]
                way.insert(0, (giver, label, taker))
                giver = taker
            return way
        reached = found
    return None


def whole_identities(owner: Tensor, sizes: Tensor, clients: int, minimum: int) -> Tensor | None:
    """The same of persons, whose samples stay together: `sizes` are how many each has.

    The smallest client gets one of the largest client that can spare one: the least that is enough for it, else the
    most there is.
    """
    owner = owner.clone()
    while True:
        held = torch.zeros(clients, dtype=sizes.dtype).index_add_(0, owner, sizes)
        small = int(held.argmin())
        lacks = minimum - int(held[small])
        if lacks <= 0:
            return owner
        for giver in held.argsort(descending=True, stable=True).tolist():
            people = ((owner == giver) & (sizes <= held[giver] - minimum)).nonzero().flatten()
            if len(people):
                break
        else:
            return None
        enough = people[sizes[people] >= lacks]
        owner[enough[sizes[enough].argmin()] if len(enough) else people[sizes[people].argmax()]] = small
