"""Laws of protocols."""

from ...guards import Guard, LightSplit, NoGuard
from ...training.laws import TASK, need
from ...training.plan.shapes import cut_shapes
from ...training.protocols import Protocol
from .toys import Skipped, split_equals_whole, toy_plan, trained

GUARDS: tuple[Guard, ...] = (NoGuard(), LightSplit(ratio=2))


def _need_a_cut(protocol: Protocol) -> None:
    if not protocol.crosses:
        raise Skipped("nothing crosses")


def split_is_unsplit(protocol: Protocol) -> None:
    """split training is the unsplit one, bit for bit, guarded or not"""
    _need_a_cut(protocol)
    for guard in GUARDS:
        split_equals_whole(toy_plan(protocol=protocol, guard=guard), TASK)


def says_what_leaves(protocol: Protocol) -> None:
    """labels_stay_home and crosses say what leaves"""
    _, _, up, _ = trained(toy_plan(protocol=protocol), TASK, 2)
    names = {name for message in up for name in message.tensors}
    need(bool(up) == protocol.crosses, f"crosses is {protocol.crosses}, and {len(up)} messages left in two steps")
    if protocol.crosses:
        travel = "y" in names
        need(
            travel != protocol.labels_stay_home,
            f"labels_stay_home is {protocol.labels_stay_home}, and labels {'travel' if travel else 'stay home'}",
        )


def sends_the_shape_it_promises(protocol: Protocol) -> None:
    """what leaves is what the guard makes of shared_shape"""
    _need_a_cut(protocol)
    for guard in GUARDS:
        plan = toy_plan(protocol=protocol, guard=guard)
        cut = cut_shapes(plan, TASK)
        for message in trained(plan, TASK, 1)[2]:
            left = tuple(message["z"].shape[1:]) if "z" in message.tensors else cut.sent
            need(
                left == cut.sent,
                f"with {guard} it sends {left}, and by shared_shape {cut.shared} it would be {cut.sent}: let share() "
                "of the client's network and shared_shape agree",
            )


LAWS = (split_is_unsplit, says_what_leaves, sends_the_shape_it_promises)
