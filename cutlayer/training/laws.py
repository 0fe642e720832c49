"""Laws of plug-ins that are cheap to try: a plan with parts from outside the package is held to them before a run.

A law is a plain function: it returns nothing where it holds, and raises AssertionError with a sentence where it is
broken. Its docstring says in a line what holds. `cutlayer check` runs these and the dearer ones.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Task, made_up
from ..core.features import Form
from ..core.guard import Guarded, GuardModule, Shape
from ..core.outside import is_outside, written
from ..core.outside.files import where
from ..core.seeds import generator, seeded
from ..core.spec import Spec, kind_of, spec
from ..core.split import each
from ..data.partitions import Partition
from ..data.samples import Samples
from ..guards.base import Bound, Guard, behind, standing
from ..guards.parts.claims import Claim
from ..nets.base import Net, crossing, out_shape
from ..rules.base import Rule, Update
from .claims import held, tempting

Law = Callable[..., None]
TASK = Task((1, 12, 12), 3, {"odd": 2})


class Skipped(Exception):
    """The law says nothing of this plug-in, and why."""


class Broken(ValueError):
    """No plan takes a plug-in that breaks a law."""


def need(holds: object, sentence: str) -> None:
    """What a law says; not the statement `assert`, which `python -O` leaves out."""
    if not holds:
        raise AssertionError(sentence)


def in_words(law: Law) -> str:
    return (law.__doc__ or law.__name__).strip().partition("\n")[0].rstrip(".")


def toy_samples(count: int = 48, seed: int = 0, task: Task = TASK) -> Samples:
    """Clouds with a bright corner by class: learnable, and no two alike."""
    draw = generator(seed)
    coarse = torch.rand(count, task.shape[0], 4, 4, generator=draw, dtype=torch.float32) * 0.5
    x = torch.nn.functional.interpolate(coarse, size=task.shape[1:], mode="bilinear")
    y = torch.arange(count) % task.classes
    for label in range(task.classes):
        x[y == label, :, 4 * label : 4 * label + 3, :4] += 0.5
    return Samples(x, y, {"odd": y % 2}, identity=torch.arange(count) // 4)


def toy_batch(task: Task, count: int, seed: int = 0) -> Batch:
    """Numbers in the shape of a task."""
    draw, y = generator(seed), torch.arange(count) % task.classes
    s = {name: torch.arange(count) % values for name, values in task.attributes.items()}
    return Batch(made_up(task, count, draw), y, s, seed)


# ------------------------------------------------------------------------------------------------ of every kind
def its_text_is_itself(thing: Spec) -> None:
    """its text makes it again: spec(repr(x)) == x"""
    need(
        is_dataclass(thing) and ("__dataclass_fields__" in vars(type(thing)) or not _annotated(type(thing))),
        f"{type(thing).__name__} is no dataclass of its own: decorate it with @dataclass(frozen=True, repr=False)",
    )
    need(
        type(thing).__dataclass_params__.frozen,  # type: ignore[attr-defined]
        f"{type(thing).__name__} can be changed: decorate it with @dataclass(frozen=True, repr=False)",
    )
    text = repr(thing)
    if is_outside(type(thing)) and ":" not in written(type(thing)):
        raise Skipped("nothing can be imported from where it was defined: put it into a file, and name that")
    need(
        text.startswith(f"{written(type(thing))}("),
        f"its text is {text}, without where it comes from: decorate it with @dataclass(frozen=True, repr=False), "
        "and leave __repr__ alone",
    )
    try:
        again = spec(text, imports=False)
    except ValueError as error:
        raise AssertionError(f"its text cannot be read, because {error}: let every field be a literal") from error
    need(again == thing, f"{text} is read as {again!r}: let every field be a literal, or a tuple of such")
    need(hash(again) == hash(thing), "equal ones have different hashes: let dataclass make __eq__ and __hash__")


def _annotated(kind: type) -> bool:
    """Whether a class has fields that only @dataclass would make arguments of."""
    return any("ClassVar" not in str(one) for one in vars(kind).get("__annotations__", {}).values())


# ------------------------------------------------------------------------------------------------------- guards
def _sent(guard: Guard, shape: Shape, task: Task) -> tuple[GuardModule, Tensor, Guarded]:
    count = max(4, 2 * guard.least_batch)
    batch, z = toy_batch(task, count), torch.rand(count, *shape, generator=generator(5))
    with seeded(0):
        module = guard.build(shape, 1, 2, task)
    need(callable(module), f"its build returns {type(module).__name__}: return the client's module, a GuardModule")
    need(
        hasattr(module, "packed") and hasattr(module, "notes"),
        f"{type(module).__name__} is no GuardModule: derive it from that, and call super().__init__() in its own",
    )
    given = {"z": z, "batch.x": batch.x, "batch.y": batch.y}
    before = {name: tensor.clone() for name, tensor in given.items()}
    with seeded(batch.seed):
        made = module(z, batch)
    for name, tensor in given.items():
        need(torch.equal(tensor, before[name]), f"it changes {name} in place, which others read: make a new tensor")
    need(isinstance(made, Guarded), f"its module returns {type(made).__name__}: return Guarded(seen)")
    need(isinstance(made.seen, Tensor), f"what it sends is a {type(made.seen).__name__}, not a tensor")
    need(made.seen.dtype == z.dtype, f"it sends {made.seen.dtype}, and the body reads {z.dtype}: return seen.to(z)")
    need(made.seen.isfinite().all(), "what it sends of numbers from 0 to 1 holds NaN or infinity")
    need("task" not in made.penalty, "a penalty has the name 'task', that of the task's own loss: give it another")
    for name, term in made.penalty.items():
        size = torch.as_tensor(term).numel()
        need(size == 1, f"the penalty {name!r} has {size} numbers, and a loss is one number: take their mean or sum")
    return module, z, made


def sends_what_it_promises(guard: Guard, shape: Shape, task: Task) -> None:
    """what leaves has the shape that out_shape promises"""
    _, _, made = _sent(guard, shape, task)
    promised, left = guard.out_shape(shape), tuple(made.seen.shape[1:])
    need(
        left == tuple(promised),
        f"of a cut {tuple(shape)} it sends {left}, and out_shape says {tuple(promised)}: let out_shape return {left}",
    )


def lift_undoes_the_shape(guard: Guard, shape: Shape, task: Task) -> None:
    """the server's half (lift) gives the body the shape that it reads"""
    _, z, made = _sent(guard, shape, task)
    with seeded(0):
        lifted = each(guard.lift(shape, 1)(made.seen), made.rows)
    hint = "write lift(self, shape, public), which returns the server's module" if "lift" not in _own(guard) else (
        "let lift return a module that gives this shape back"
    )  # fmt: skip
    need(
        lifted.shape == z.shape,
        f"the body reads {tuple(shape)}, and the server's half gives {tuple(lifted.shape[1:])}: {hint}",
    )
    undo = guard.undo(shape, 1)
    if undo is not None:
        got = tuple(each(undo(made.seen), made.rows).shape[1:])
        need(got == tuple(shape), f"undo gives {got}, not the shape of the cut {tuple(shape)}")


def the_server_builds_the_same_lift(guard: Guard, shape: Shape, task: Task) -> None:
    """the server's half follows from the public part and the public seed alone"""
    seen = _sent(guard, shape, task)[2].seen.detach()
    with seeded(1):
        ours = guard.lift(shape, 1)
    with seeded(2):
        theirs = guard.public_part().lift(shape, 1)
    mine, yours = [*ours.state_dict().values()], [*theirs.state_dict().values()]
    same = len(mine) == len(yours) and all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
    need(
        same and torch.equal(ours.eval()(seen), theirs.eval()(seen)),
        "two machines build different lifts: draw everything in lift from generator(public), or under seeded(public)",
    )


def is_a_function_of_its_seeds(guard: Guard, shape: Shape, task: Task) -> None:
    """what leaves follows from its seeds and the step: a replayed step is the same step"""
    _, z, made = _sent(guard, shape, task)
    batch = toy_batch(task, len(z))
    with seeded(9):  # another process has drawn other numbers before it builds the guard
        module = guard.build(shape, 1, 2, task)
    with seeded(batch.seed):  # as every step of a client is
        again = module(z, batch)
    need(
        torch.equal(made.seen, again.seen),
        "the same step gives other numbers: draw weights and keys from generator(public) or generator(private), "
        "noise from a generator seeded by derive(private, ..., batch.seed)",
    )


def says_that_it_draws_anew(guard: Guard, shape: Shape, task: Task) -> None:
    """a guard by which two messages of one sample differ says so: draws_anew"""
    if guard.draws_anew:
        return
    count = max(8, 2 * guard.least_batch)
    half, same = count // 2, toy_batch(task, count)
    sent: list[Tensor] = []
    z, first = (torch.rand(count, *shape, generator=generator(seed)) for seed in (5, 6))
    for seed in (1, 2):  # of the step: half of its samples are the same ones, among other companions
        other = toy_batch(task, count, seed)
        companions = torch.rand(count, *shape, generator=generator(seed))
        with seeded(0):
            module = guard.build(shape, 1, 2, task)
        with seeded(same.seed):
            module(first, same)  # what it takes from its first batch, it has from the same one
        with seeded(seed):
            made = module(
                torch.cat([z[:half], companions[half:]]),
                Batch(torch.cat([same.x[:half], other.x[half:]]), other.y, other.s, seed),
            )
        sent.append(each(made.seen, made.rows)[:half])
    need(
        torch.allclose(sent[0], sent[1], atol=1e-5),
        "two messages of one sample differ, by what is drawn or by its companions, and an audit would read each by "
        "itself: let draws_anew return True (mixes_samples, where samples share rows)",
    )


def draws_in_service(guard: Guard, shape: Shape, task: Task) -> None:
    """what it draws to cover a sample in training, it draws in service, too"""
    if not guard.draws_anew or guard.rests_in_service:
        return
    batch = toy_batch(task, max(8, 2 * guard.least_batch))
    z = torch.rand(len(batch), *shape, generator=generator(5))

    def same_again(training: bool) -> bool:
        sent: list[Tensor] = []
        for seed in (1, 2):  # of the step, and nothing else differs
            with seeded(0):
                module = guard.build(shape, 1, 2, task).train(training)
            with torch.no_grad(), seeded(seed):
                sent.append(module(z, replace(batch, seed=seed)).seen)
        return sent[0].shape == sent[1].shape and torch.equal(sent[0], sent[1])

    need(
        same_again(training=True) or not same_again(training=False),
        "two messages of one sample differ in training, and in service they are the same, so nothing covers what is "
        "predicted: act in eval(), too, or say rests_in_service = True where that is meant",
    )


def noise_hides_what_leaves(guard: Guard, shape: Shape, task: Task, behind_noise: bool = False) -> None:
    """what leaves behind noise follows from what was noised; where inputs or labels are in it, bound() says so"""
    bound = Bound()
    for part in guard.stages():
        noised = behind_noise or bound.release is not None
        settled, bound = behind(part, bound)
        if noised and is_outside(type(part)) and type(part).bound is Guard.bound and not part.client_only:
            _reads_z_alone(settled, shape, task)
        shape = settled.out_shape(shape)


def _reads_z_alone(guard: Guard, shape: Shape, task: Task) -> None:
    count = max(4, 2 * guard.least_batch)
    first = toy_batch(task, count)
    others = {name: (values + 1) % max(2, task.attributes[name]) for name, values in first.s.items()}
    z, begun = (torch.rand(count, *shape, generator=generator(seed)) for seed in (5, 6))
    sent: list[Tensor] = []
    for batch in (
        first,
        Batch(toy_batch(task, count, 1).x, (first.y + 1) % max(2, task.classes), others, first.seed),
    ):
        with seeded(0):
            module = guard.build(shape, 1, 2, task)
        with seeded(0):
            module(begun, first)  # what it takes from its first batch, it has from the same one
        with seeded(first.seed):
            sent.append(module(z, batch).seen)
    need(
        sent[0].shape == sent[1].shape and torch.allclose(sent[0], sent[1], atol=1e-6),
        "inputs or labels are in what leaves beside z, and noise in front of it hides neither, so no ε holds: write "
        "bound(self, before), which returns Bound(why=...)",
    )


def claims_what_is_so(guard: Guard, shape: Shape, task: Task) -> None:
    """what it claims is true of what is sent"""
    bound, cut = Bound(), shape
    for part in guard.stages():
        settled, bound = behind(part, bound)
        said: Any = settled.claims(cut)
        need(
            isinstance(said, tuple) and all(isinstance(one, Claim) for one in said),
            f"claims() returns a tuple of Claim(text, holds); got {said!r}",
        )
        cut = settled.out_shape(cut)
    if not any(one.claims for one in standing(guard, shape)):
        return
    for place, z in enumerate(tempting(shape)):
        for training in (True, False):
            for part, claim, holds in held(guard, shape, z, toy_batch(task, len(z), place), task, training):
                need(
                    holds,
                    f'{part} claims "{claim.text}", and that is false of what {guard} sends: correct the sentence, '
                    "or what Claim.survives or bound() say of it",
                )


def _own(guard: Guard) -> set[str]:
    return {name for kind in type(guard).__mro__ if is_outside(kind) for name in vars(kind)}


CHEAP_GUARD: tuple[Law, ...] = (
    sends_what_it_promises,
    lift_undoes_the_shape,
    the_server_builds_the_same_lift,
    is_a_function_of_its_seeds,
    says_that_it_draws_anew,
    draws_in_service,
    noise_hides_what_leaves,
    claims_what_is_so,
)


# -------------------------------------------------------------------------------------------------------- rules
def toy_state(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = generator(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    return {
        "net.w": random(3, 2),
        "net.kernel": random(4, 2, 3, 3),
        "net.b": random(3),
        "net.one": random(),
        "stat.mean": random(3),
        "stat.count": torch.tensor(seed),
    }


def _weights(state: Any) -> dict[str, Tensor]:
    need(hasattr(state, "items"), f"it returns a {type(state).__name__}: return a dict of tensors by name")
    return {name: tensor for name, tensor in state.items() if name.startswith(("net.", "stat."))}


def keeps_names_and_shapes(rule: Rule, dtype: torch.dtype = torch.float32) -> None:
    """every tensor comes back under its name, in its shape and precision, as numbers"""
    after = _weights(rule(toy_state(0, dtype), toy_updates(rule, dtype)))
    for name, tensor in toy_state(0, dtype).items():
        need(name in after, f"{name} is gone: return every name of `current` that begins with net. or stat.")
        need(
            (after[name].shape, after[name].dtype) == (tensor.shape, tensor.dtype),
            f"{name} was {tuple(tensor.shape)} {tensor.dtype} and is {tuple(after[name].shape)} {after[name].dtype}: "
            "use like(value, tensor) of cutlayer.rules",
        )
        need(bool(torch.isfinite(after[name].double()).all()), f"{name} is NaN or infinite")
    need(after.keys() == toy_state(0).keys(), f"new names: {', '.join(after.keys() - toy_state(0).keys())}")


def where_nobody_moved_nothing_does(rule: Rule, most: float = 1e-6) -> None:
    """where every client brings back what it was given, nothing changes"""
    still = [Update(toy_state(0), 3 + place) for place in range(max(4, rule.least))]
    for name, tensor in _weights(rule(toy_state(0), still)).items():
        close = torch.allclose(tensor.double(), toy_state(0)[name].double(), rtol=0, atol=most)
        need(close, f"{name} changed although nobody moved: move by a function of (update - current)")


def toy_updates(rule: Rule, dtype: torch.dtype = torch.float32) -> list[Update]:
    return [Update(toy_state(1 + place, dtype), 3 + 2 * place) for place in range(max(4, rule.least))]


CHEAP_RULE: tuple[Law, ...] = (keeps_names_and_shapes, where_nobody_moved_nothing_does)


# --------------------------------------------------------------------------------------------------- partitions
def deals_every_sample_once(partition: Partition) -> None:
    """every sample has one owner, and no client is left without"""
    samples = toy_samples()
    for clients in (1, 2, 3):
        try:
            shares = partition.assign(samples, clients, 0)
        except ValueError:  # it says what it needs, and these toys are not that
            continue
        need(len(shares) == clients, f"{clients} clients get {len(shares)} shares")
        rows = torch.cat(list(shares))
        if partition.leaves_out:
            need(len(rows.unique()) == len(rows), f"{len(rows) - len(rows.unique())} samples have two owners")
            continue
        need(
            torch.equal(rows.sort().values, torch.arange(len(samples))),
            f"{len(samples)} samples are dealt to {clients} clients as {len(rows)} rows, {rows.unique().numel()} "
            "different ones: let _owners give each sample the number of one client, or say leaves_out = True",
        )
        need(all(len(one) for one in shares), f"one of {clients} clients has nothing: refuse that with a ValueError")


def deals_the_same_again(partition: Partition) -> None:
    """the same seed deals the same"""
    samples = toy_samples()
    try:
        with seeded(1):
            one = partition.assign(samples, 2, 7)
        with seeded(2):
            other = partition.assign(samples, 2, 7)
    except ValueError:
        return
    need(
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True)),
        "the same seed deals differently: draw from generator(seed)",
    )


CHEAP_PARTITION: tuple[Law, ...] = (deals_every_sample_once, deals_the_same_again)


# ----------------------------------------------------------------------------------------------------- networks
def its_parts_fit(net: Net, task: Task) -> None:
    """head, body and tail fit each other, and the tail gives a score for each class"""
    net.check(task.shape)
    with seeded(0), torch.device("meta"):  # parts without storage
        parts = [net.head(task.shape), net.body(task.shape), net.tail(task.shape, task.classes)]
    shape: Shape = tuple(task.shape)
    beside: Mapping[str, Form] = {}
    for name, part in zip(("head", "body", "tail"), parts, strict=True):
        try:
            if name == "head":
                shape, beside = crossing(part, shape)
            else:
                shape = out_shape(part, shape, beside)
        except (Exception, SystemExit) as error:  # whatever a user's forward raises
            raise AssertionError(f"the {name} cannot read {shape}: {error}") from error
    need(shape[:1] == (task.classes,), f"the tail gives {shape}; {task.classes} classes need ({task.classes},)")


CHEAP_NET: tuple[Law, ...] = (its_parts_fit,)


# ------------------------------------------------------------------------------------------------- before a run
def refuse_broken(parts: Sequence[Any], cut: Shape, task: Task) -> None:
    """Hold everything from outside the package among `parts` to the cheap laws of its kind; the first broken one is
    a ValueError. `cut` is what a guard reads."""
    for part in parts:
        for one in _from_outside(part):
            if ":" in written(type(one)):  # else nobody could type it: a class of a notebook, or of a test
                hold(one, (its_text_is_itself,))
        if isinstance(part, Guard) and any(_from_outside(part)):
            hold(part, CHEAP_GUARD, tuple(cut), task)
        elif is_outside(type(part)):
            for kind, laws in ((Rule, CHEAP_RULE), (Partition, CHEAP_PARTITION)):
                if isinstance(part, kind) and getattr(part, "merges", True):
                    hold(part, laws)


def refuse_broken_net(net: Net, task: Task) -> None:
    """Only where one process plays both sides: elsewhere a server builds no tail, and a client no body."""
    if is_outside(type(net)):
        hold(net, CHEAP_NET, task)


def _from_outside(value: Any) -> Iterator[Spec]:
    if isinstance(value, tuple | list):
        for one in value:
            yield from _from_outside(one)
    elif isinstance(value, Spec):
        if is_outside(type(value)):
            yield value
        for one in fields(value) if is_dataclass(value) else ():
            yield from _from_outside(getattr(value, one.name))


class _Task:
    """A task that can be looked up: the same plan is asked about many times."""

    def __init__(self, task: Task):
        self.task = task

    def __hash__(self) -> int:
        return hash(repr(self.task))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Task) and repr(self.task) == repr(other.task)


def hold(part: Any, laws: tuple[Law, ...], *given: Any) -> None:
    """An error for the first of these laws that `part` breaks."""
    try:
        why = _known_broken(part, laws, *(_Task(one) if isinstance(one, Task) else one for one in given))
    except TypeError:  # it has a list among its fields, and no hash: the first law is about that
        why = _broken(part, laws, *given)
    if why:
        raise Broken(why)


def _broken(part: Any, laws: tuple[Law, ...], *given: Any) -> str:
    toys = [one.task if isinstance(one, _Task) else one for one in given]
    for law in laws:
        try:
            law(part, *toys)
        except (Exception, SystemExit) as error:  # whatever a plug-in raises
            kind = kind_of(type(part)) or "specs"
            said = (str(error) if isinstance(error, AssertionError | ValueError) else where(error)).rstrip(".")
            return f"{part!r} breaks a law of {kind}: {in_words(law)}: {said}. All laws: cutlayer check '{part!r}'"
    return ""


_known_broken = functools.lru_cache(maxsize=256)(_broken)
