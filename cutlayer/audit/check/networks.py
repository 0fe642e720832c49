"""Laws of networks."""

import torch

from ...core.batch import Task
from ...core.seeds import seeded
from ...nets.base import Net
from ...training.laws import its_parts_fit, need
from ...training.plan.code import SHAPES
from ...training.protocols import UShaped, Vanilla
from .toys import Skipped, split_equals_whole, toy_plan

CLASSES = 10


def _task(net: Net) -> Task:
    for shape in SHAPES:
        try:
            net.check(shape)
        except ValueError:
            continue
        return Task(shape, CLASSES)
    raise AssertionError(f"check() refuses inputs of all shapes that were tried: {', '.join(map(str, SHAPES))}")


def fits(net: Net) -> None:
    """head, body and tail fit each other, and the tail gives a score for each class"""
    its_parts_fit(net, _task(net))


def split_is_unsplit(net: Net) -> None:
    """split training is the unsplit one, bit for bit"""
    for protocol in (UShaped(), Vanilla()):
        split_equals_whole(toy_plan(net=net, protocol=protocol), _task(net), steps=2)


def starts_from_a_seed(net: Net) -> None:
    """the same seed gives the same weights"""
    task = _task(net)
    for name, make in {"head": net.head, "body": net.body}.items():
        states = []
        for _ in range(2):
            with seeded(3):
                states.append(make(task.shape).state_dict())
        same = all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
        need(same, f"the {name} starts differently under one seed: draw from torch's generator alone")


def refuses_in_words(net: Net) -> None:
    """an input it cannot read is refused with a ValueError"""
    refused = 0
    for shape in ((), (0,), (1, 1, 1), (2, 3, 4, 5)):
        try:
            net.check(shape)
        except ValueError:
            refused += 1
        except (Exception, SystemExit) as error:  # anything else is a trace to a user
            raise AssertionError(
                f"check({shape}) raises {type(error).__name__}: raise a ValueError that says what it reads"
            ) from error
    if not refused:
        raise Skipped("it reads every shape that was tried")


LAWS = (fits, split_is_unsplit, starts_from_a_seed, refuses_in_words)
