import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cutlayer.core.spec import names, spec
from cutlayer.data.base import Samples
from cutlayer.data.partitions import IID, ByIdentity, Dirichlet, Labels
from cutlayer.data.refill import of_own_labels

ALL = [
    IID(),
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=1e7, minimum=3),
    Dirichlet(alpha=0.05, minimum=100, refill=True),
    Labels(m=2),
    Labels(m=3, minimum=85, refill=True),
    ByIdentity(),
    ByIdentity(minimum=90, refill=True),
]


def samples(y, identity=None):
    y = torch.as_tensor(y, dtype=torch.int64)
    return Samples(torch.zeros(len(y), 1, dtype=torch.uint8), y, identity=identity)


IDS = torch.arange(24).reshape(6, 4) % 9  # texts, of which each place learns the next


def ten_classes(count=1000):
    number = torch.arange(count)
    return samples(number % 10, identity=number // 7)


def table(held, shares):
    """Clients x labels: how many samples of each label a client has."""
    return torch.stack([held.y[rows].bincount(minlength=10) for rows in shares])


def check_laws(held, shares, clients):
    assert len(shares) == clients
    assert all(len(rows) for rows in shares)
    assert all(torch.equal(rows, rows.sort().values) for rows in shares)
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(len(held)))


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_every_sample_has_one_owner_and_every_client_a_sample(partition):
    held = ten_classes()
    check_laws(held, partition.assign(held, 8, seed=0), 8)


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_the_seed_decides_alone(partition):
    held = ten_classes()
    first = partition.assign(held, 8, seed=1)
    torch.manual_seed(5)
    again, other = partition.assign(held, 8, seed=1), partition.assign(held, 8, seed=2)
    assert all(map(torch.equal, first, again))
    assert not all(len(a) == len(b) and torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", [*ALL, Dirichlet(0.3)], ids=repr)
def test_a_partition_can_be_typed(partition):
    assert spec(repr(partition), "partitions") == partition


def test_exactly_four_can_be_typed():
    assert sorted(names("partitions")) == ["ByIdentity", "Dirichlet", "IID", "Labels"]


@pytest.mark.parametrize("partition", [IID(), Dirichlet(alpha=1.0), ByIdentity()], ids=repr)
def test_one_client_holds_everything(partition):
    assert partition.assign(ten_classes(), 1, seed=0)[0].tolist() == list(range(1000))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 12))
def test_iid_is_even_in_size_and_in_every_class(y, clients):
    assume(clients <= len(y))
    held = samples(y)
    shares = IID().assign(held, clients, seed=0)
    check_laws(held, shares, clients)
    counts = table(held, shares)
    assert (counts.max(0).values - counts.min(0).values).max() <= 1
    assert counts.sum(1).max() - counts.sum(1).min() <= 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10), st.integers(1, 25), st.integers(1, 10), st.integers(0, 3))
def test_labels_gives_everyone_exactly_m_labels(m, clients, classes, seed):
    assume(m <= classes <= clients * m)
    held = samples(torch.arange(300) % classes)
    shares = Labels(m).assign(held, clients, seed)
    check_laws(held, shares, clients)
    holds = table(held, shares) > 0
    assert (holds.sum(1) == m).all()
    holders = holds.sum(0)[:classes]
    assert holders.max() - holders.min() <= 1


def test_those_who_share_a_label_share_it_evenly():
    counts = table(ten_classes(), Labels(m=3).assign(ten_classes(), 7, seed=0))
    for column in counts.T:
        assert column[column > 0].max() - column[column > 0].min() <= 1


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 1e6), st.integers(1, 8), st.integers(1, 5), st.integers(0, 9))
def test_dirichlet_laws_hold_at_every_moderate_alpha(alpha, clients, minimum, seed):
    held = ten_classes(400)
    shares = Dirichlet(alpha, minimum).assign(held, clients, seed)
    check_laws(held, shares, clients)
    assert min(map(len, shares)) >= minimum


def test_a_large_alpha_is_even_and_a_small_one_is_skewed():
    held = ten_classes(5000)
    even, skewed = (table(held, Dirichlet(alpha).assign(held, 5, seed=0)) for alpha in (1e7, 0.05))
    assert (even - 100).abs().max() <= 1
    # Of each class, the largest owner has nearly everything.
    assert (skewed.max(0).values / 500).mean() > 0.8


def test_the_mean_share_of_the_largest_owner_falls_with_alpha():
    held = ten_classes(5000)
    largest = [
        torch.stack([table(held, Dirichlet(alpha).assign(held, 5, seed)).max(0).values / 500.0 for seed in range(5)])
        for alpha in (0.1, 0.5, 1.0, 10.0)
    ]
    means = [shares.mean() for shares in largest]
    assert means == sorted(means, reverse=True)


def test_even_shares_of_small_classes_starve_nobody():
    # Four samples for ten clients: rounding gives them to the same four places in every draw.
    held = ten_classes(40)
    check_laws(held, Dirichlet(alpha=1e7).assign(held, 10, seed=0), 10)


@pytest.mark.parametrize(("partition", "clients"), [(Dirichlet(0.05), 8), (Dirichlet(0.5, minimum=12), 5)], ids=repr)
def test_a_draw_that_leaves_a_client_too_little_is_drawn_again(partition, clients):
    # About one first draw in three is not good enough here.
    held = ten_classes(100)
    for seed in range(20):
        shares = partition.assign(held, clients, seed)
        check_laws(held, shares, clients)
        assert min(map(len, shares)) >= partition.minimum


@pytest.mark.parametrize(("alpha", "minimum"), [(0.01, 1), (0.1, 30), (0.1, 100), (100.0, 7)])
def test_small_clients_are_refilled_from_the_largest(alpha, minimum):
    held = ten_classes()
    for seed in range(5):
        shares = Dirichlet(alpha, minimum, refill=True).assign(held, 10, seed)
        check_laws(held, shares, 10)
        assert min(map(len, shares)) >= minimum
    if minimum == 100:  # equal shares
        assert {len(rows) for rows in shares} == {100}


def test_refilling_moves_no_more_than_it_has_to():
    held = ten_classes()
    before, after = Dirichlet(0.3).assign(held, 10, seed=4), Dirichlet(0.3, 60, refill=True).assign(held, 10, seed=4)
    short = sum(max(0, 60 - len(rows)) for rows in before)
    moved = sum(len(set(new.tolist()) - set(old.tolist())) for new, old in zip(after, before, strict=True))
    assert moved == short > 0


def uneven_classes():
    """Ten classes of 20 to 200 samples, and persons with 1 to 30."""
    generator = torch.Generator().manual_seed(0)
    y = torch.cat([torch.full((20 * (label + 1),), label) for label in range(10)])
    people = torch.repeat_interleave(torch.arange(100), torch.randint(1, 31, (100,), generator=generator))
    return samples(y, identity=people[: len(y)])


@pytest.mark.parametrize("m", [2, 3])
def test_refilled_clients_have_as_many_labels(m):
    held = uneven_classes()
    for seed in range(5):
        before = Labels(m).assign(held, 10, seed)
        after = Labels(m, minimum=90, refill=True).assign(held, 10, seed)
        check_laws(held, after, 10)
        assert min(map(len, before)) < 90 <= min(map(len, after))
        assert set((table(held, after) > 0).sum(1).tolist()) == {m}


def test_what_no_neighbour_can_spare_comes_by_way_of_another():
    # The first client shares a label with the second alone, who has nothing to spare; the third has.
    y = torch.tensor([0] * 5 + [1] * 11)
    owner = torch.tensor([0, 0, 1, 1, 1, 1, *[2] * 10])
    found = of_own_labels(owner, y, 3, 4, torch.Generator())
    assert [((found == client) & (y == label)).sum().item() for client in range(3) for label in (0, 1)] == [
        4, 0, 1, 3, 0, 8,
    ]  # fmt: skip
    assert of_own_labels(owner, y, 3, 5, torch.Generator()) is None, "the second keeps one of each"


def test_refilled_clients_have_whole_persons():
    held = uneven_classes()
    for seed in range(5):
        before = ByIdentity().assign(held, 10, seed)
        after = ByIdentity(minimum=100, refill=True).assign(held, 10, seed)
        check_laws(held, after, 10)
        assert min(map(len, before)) < 100 <= min(map(len, after))
        people = [set(held.identity[rows].tolist()) for rows in after]
        assert sum(map(len, people)) == len(set.union(*people))


def test_the_first_clients_do_not_always_hold_all_labels_between_them():
    held = ten_classes()
    whole = [len(held.y[torch.cat(Labels(m=2).assign(held, 10, seed)[:5])].unique()) == 10 for seed in range(20)]
    assert sum(whole) < 10


def test_an_identity_is_never_torn_apart():
    held = ten_classes()
    shares = ByIdentity().assign(held, 9, seed=0)
    people = [set(held.identity[rows].tolist()) for rows in shares]
    assert sum(map(len, people)) == len(set.union(*people)) == 143
    assert {len(group) for group in people} == {15, 16}


@pytest.mark.parametrize(
    ("partition", "held", "clients", "words"),
    [
        (
            IID(),
            ten_classes(10),
            11,
            "10 samples can be shared by 1 to 10 clients; got 11: change the number",
        ),
        (IID(), ten_classes(10), 0, "1 to 10 clients; got 0"),
        (
            Labels(m=1),
            ten_classes(),
            9,
            "9 clients with m=1 hold at most 9 of 10 labels, .* use m >= 2 or more",
        ),
        (Labels(m=11), ten_classes(), 9, "m=11 labels a client, but the samples have only 10: lower m"),
        (Labels(m=2), samples([0] * 50 + [1]), 3, "label 1 has 1 samples for 3 clients: use fewer clients"),
        (
            Labels(m=1, minimum=60, refill=True),
            samples([0] * 50 + [1] * 150),
            2,
            "no draw gave 2 clients 60 or more of 200 samples: lower minimum, or use fewer clients",
        ),
        (
            ByIdentity(minimum=45, refill=True),
            samples([0] * 100, identity=torch.tensor([0] * 60 + [1] * 40)),
            2,
            "no draw gave 2 clients 45 or more of 100 samples: lower minimum, or",
        ),
        (ByIdentity(minimum=600), ten_classes(), 2, "lower minimum, give refill=True, or use fewer clients"),
        (ByIdentity(), samples([0, 1, 2]), 2, "samples that say whom they belong to.*Faces with its identity"),
        (ByIdentity(), ten_classes(), 144, "143 identities cannot fill 144 clients: use 143 or fewer"),
        (
            Dirichlet(1e-3),
            ten_classes(60),
            50,
            r"Dirichlet\(alpha=0.001\): no draw gave 50 clients 1 .* raise alpha, give refill=True, or use fewer",
        ),
        (Dirichlet(1.0), Samples(IDS, IDS, vocabulary=9), 2, r"here every place has its own: use IID\(\)"),
        (Labels(m=1), Samples(IDS, IDS, vocabulary=9), 2, r"here every place has its own: use IID\(\)"),
        (
            Dirichlet(1e7, minimum=11),
            ten_classes(100),
            10,
            "no draw gave 10 clients 11 or more of 100 samples",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(partition, held, clients, words):
    with pytest.raises(ValueError, match=words):
        partition.assign(held, clients, seed=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Dirichlet(alpha=0)", "alpha is how even the shares are, above 0 and finite; got 0"),
        ("Dirichlet(alpha=1e999)", "above 0 and finite; got inf"),
        (
            "Dirichlet(alpha=1, minimum=0)",
            "minimum is the fewest samples a client may have, at least 1; got 0",
        ),
        ("Labels(m=0)", "m is how many labels a client holds, at least 1; got 0"),
        ("Labels(m=1.5)", "at least 1; got 1.5"),
        ("Labels()", "Labels takes m, minimum=1, refill=False; got"),
        ("Dirichlet()", "Dirichlet takes alpha, minimum=1, refill=False; got"),
    ],
)
def test_bad_settings_are_refused_when_typed(text, words):
    with pytest.raises(ValueError, match=words):
        spec(text, "partitions")
