"""Laws of guards."""

import pickle
from dataclasses import replace

import torch

from ...core.batch import Task
from ...core.guard import Shape
from ...core.search import corners, why_strange
from ...core.seeds import derive, seeded
from ...guards.base import Guard, NoGuard
from ...guards.parts.claims import Claim
from ...nets.base import Net
from ...nets.signal_net import SignalNet
from ...nets.whole import Whole
from ...training.build import build_client, build_server
from ...training.laws import (
    TASK,
    Broken,
    claims_what_is_so,
    draws_in_service,
    is_a_function_of_its_seeds,
    lift_undoes_the_shape,
    need,
    noise_hides_what_leaves,
    says_that_it_draws_anew,
    sends_what_it_promises,
    the_server_builds_the_same_lift,
    toy_batch,
)
from ...training.plan.plan import Plan
from ...training.plan.shapes import cut_shapes
from ...training.protocols import Bypass, Protocol, UShaped, Vanilla
from ...wire import frames
from .claims import COMPANY, chains_with
from .toys import SECRET, Skipped, ToyNet, split_equals_whole, toy_plan, trained

PROTOCOLS: tuple[Protocol, ...] = (UShaped(), Vanilla(), Bypass())
SERIES = Task((1, 64), 3, {"odd": 2})
TOYS: tuple[tuple[Net, Task], ...] = (
    (ToyNet(), TASK),  # maps
    (ToyNet(norm="group"), TASK),  # samples apart
    (Whole(net=ToyNet()), TASK),  # at the input
    (SignalNet(), SERIES),  # channels x length, as tokens x width are
)
CUTS: tuple[Shape, ...] = ((4, 5, 5), (1, 12, 12), (12,), (32, 32))


def plan_for(guard: Guard) -> tuple[Plan, Task]:
    """A toy plan that the guard fits, and its task."""
    refused: list[str] = []
    for net, task in TOYS:
        try:
            plan = toy_plan(net=net, guard=guard, batch_size=max(6, 2 * guard.least_batch))
            guard.out_shape(cut_shapes(toy_plan(net=net), task).z)
            server = build_server(plan.public(), task)
            build_client(plan, task, 0, server.handle)
            return plan, task
        except Broken:
            raise
        except ValueError as error:
            refused.append(str(error))
    raise AssertionError(
        f"it fits no toy cut; of 4 x 5 x 5 it says: {refused[0]}; of a series of 32 x 32: {refused[-1]}"
    )


def _cut(guard: Guard) -> Shape:
    for shape in CUTS:
        try:
            guard.out_shape(shape)
            return shape
        except ValueError:
            continue
    raise AssertionError("it refuses cuts of 4 x 5 x 5, of 1 x 12 x 12, of 12 numbers, and a series of 32 x 32")


def promises(guard: Guard) -> None:
    """what leaves has the shape that out_shape promises"""
    sends_what_it_promises(guard, _cut(guard), TASK)


def lifts(guard: Guard) -> None:
    """the server's half (lift) gives the body the shape that it reads"""
    lift_undoes_the_shape(guard, _cut(guard), TASK)


def public_half(guard: Guard) -> None:
    """the server's half follows from the public part and the public seed alone"""
    the_server_builds_the_same_lift(guard, _cut(guard), TASK)


def by_seeds(guard: Guard) -> None:
    """what leaves follows from its seeds and the step: a replayed step is the same step"""
    is_a_function_of_its_seeds(guard, _cut(guard), TASK)


def draws_anew(guard: Guard) -> None:
    """a guard by which two messages of one sample differ says so: draws_anew"""
    says_that_it_draws_anew(guard, _cut(guard), TASK)


def also_in_service(guard: Guard) -> None:
    """what it draws to cover a sample in training, it draws in service, too"""
    draws_in_service(guard, _cut(guard), TASK)


def reads_z_alone(guard: Guard) -> None:
    """what leaves behind noise follows from what was noised; where inputs or labels are in it, bound() says so"""
    noise_hides_what_leaves(guard, _cut(guard), TASK, behind_noise=True)


def split_is_unsplit(guard: Guard) -> None:
    """split training is the unsplit one, bit for bit"""
    plan, task = plan_for(guard)
    tried = 0
    for protocol in PROTOCOLS:
        try:
            one = toy_plan(net=plan.net, guard=guard, protocol=protocol, batch_size=plan.batch_size)
            cut_shapes(one, task)
        except ValueError:
            continue
        split_equals_whole(one, task)
        tried += 1
    need(tried, "it fits no protocol")


def bytes_are_frames(guard: Guard) -> None:
    """what is counted as sent is what travels, and arrives bit for bit"""
    plan, task = plan_for(guard)
    _, _, up, down = trained(plan, task, 2)
    for message in [*up, *down]:
        frame = frames.encode(message)
        need(len(frame) == frames.size(message), f"{frames.size(message)} bytes are counted, {len(frame)} travel")
        back = frames.decode(frame)
        for name, tensor in message.tensors.items():
            need(
                torch.equal(back[name], tensor),
                f"{name} arrives as other numbers: `packed` must be the bytes of exactly what `seen` is",
            )


def tells_no_secret(guard: Guard) -> None:
    """nothing the server gets, nor what clients hand on, holds inputs, labels or the client's seeds"""
    plan, task = plan_for(guard)
    client, server, up, _ = trained(plan, task, 2)
    names = {name for message in up for name in message.tensors}
    need(names <= {"z", "du"}, f"{', '.join(sorted(names - {'z', 'du'}))} leave beside z and du")
    known = repr(plan.public()).encode()
    shown = [server.body.state_dict(), client.split.state_dict(), [message.tensors for message in up]]
    held = pickle.dumps(shown) + known
    own = derive(SECRET, "client", 0)
    for what, secret in {"private seed": SECRET, "client's seed": own, "guard's seed": derive(own, "guard")}.items():
        found = secret.to_bytes(8, "little") in held or str(secret).encode() in held
        need(not found, f"the {what} is in what the server has, or is handed on: keep keys in non-persistent buffers")
    need(
        not guard.client_only or type(guard).__name__.encode() not in known,
        "the server's plan names a guard that is the client's alone",
    )


def acts_in_service(guard: Guard) -> None:
    """it does in service what it does in training, and client_only says whether what leaves is left alone"""
    shape, batch = _cut(guard), toy_batch(TASK, max(6, 2 * guard.least_batch))
    z = torch.rand(len(batch), *shape, generator=torch.Generator().manual_seed(3))
    module = guard.build(shape, 1, 2, TASK).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad(), seeded(4):
        seen = module(z, batch).seen
    learnt = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
    need(not learnt, f"a prediction changes {', '.join(learnt)}: change weights and statistics in training alone")
    alone = seen.shape == z.shape and torch.equal(seen, z)
    need(alone or not guard.client_only, "it says client_only, and what leaves is not what came in")
    need(
        not alone or guard.client_only or isinstance(guard, NoGuard),
        "what leaves in service is what came in: act in eval(), too, or say client_only = True where it is a penalty",
    )


def says_what_may_be_claimed(guard: Guard) -> None:
    """its claims are one line each with a check, and a guard that leaves what is sent alone claims nothing"""
    need(
        type(guard).claim is Guard.claim,
        "it overrides claim(), a sentence that nothing checks: state it in claims(shape), as (Claim(text, holds),)",
    )
    found = guard.claims(_cut(guard))
    need(isinstance(found, tuple), f"claims() returns a tuple of Claim(text, holds); got {found!r}")
    for one in found:
        need(isinstance(one, Claim), f"claims() returns a tuple of Claim(text, holds); got {one!r} in it")
        need(one.text and "\n" not in one.text, f"a claim is one line; got {one.text!r}")
    need(not (guard.client_only and found), "a penalty bounds nothing of what leaves: let claims() return ()")


def claims_are_true(guard: Guard) -> None:
    """what it claims is true of what is sent, alone and in a chain with others, and so is what they claim"""
    shape = _cut(guard)
    for one in (guard, *chains_with(guard, COMPANY, shape)):
        claims_what_is_so(one, shape, TASK)


def hands_on(guard: Guard) -> None:
    """what one client hands on fits another client's guard"""
    plan, task = plan_for(guard)
    two = toy_plan(net=plan.net, guard=guard, clients=2, batch_size=plan.batch_size)
    one, other = (build_client(two, task, number, lambda message: message) for number in (0, 1))
    other.split.load_state_dict(one.split.state_dict())


def refuses_in_words(guard: Guard) -> None:
    """a cut it cannot read is refused with a ValueError that names it"""
    refused = 0
    for shape in ((1,), (3,), (2, 3), (1, 1, 1)):
        try:
            guard.out_shape(shape)
        except ValueError as error:
            refused += 1
            need(len(str(error)) > 15, f"{shape} is refused with {str(error)!r}: say what would fit")
        except (Exception, SystemExit) as error:  # anything else is a trace to a user
            raise AssertionError(
                f"out_shape({shape}) raises {type(error).__name__}: raise a ValueError that says what would fit"
            ) from error
    if not refused:
        raise Skipped("it reads every cut that was tried")


def names_what_may_be_tried(guard: Guard) -> None:
    """what tune may try for its settings is what it can be built with"""
    kind = type(guard)
    if kind.search is None:
        raise Skipped("it names no search space, so tune takes it as it is typed")
    need((why := why_strange(kind)) is None, why or "")
    for settings in corners(kind):
        try:
            replace(guard, **settings)
        except ValueError as error:
            raise AssertionError(f"{settings} is in its search space, and it refuses that: {error}") from error


LAWS = (
    promises,
    lifts,
    public_half,
    by_seeds,
    draws_anew,
    also_in_service,
    reads_z_alone,
    split_is_unsplit,
    bytes_are_frames,
    tells_no_secret,
    acts_in_service,
    says_what_may_be_claimed,
    claims_are_true,
    hands_on,
    refuses_in_words,
    names_what_may_be_tried,
)
