"""Numbers that are none, and a watcher at a client that sends none of them."""

import math

from torch import Tensor

from .errors import NonFinite
from .message import Handler, Kind, Message

WHAT = {"z": "what the guard lets out", "du": "the gradient at u"}


def refuse_lost_numbers(message: Message, next: Handler) -> Message:
    """For clients that learn beside others, who would have to live with it. A prediction spoils nothing."""
    if message.kind is not Kind.PREDICT:
        for name, what in WHAT.items():
            if name in message.tensors and not finite(message[name]):
                raise NonFinite(f"{what} holds NaN or infinity, and is not sent")
    return next(message)


def finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite. Either stays in a sum; where the sum alone is too large, the ends tell.
    No mask as large as the tensor, a tenth of the time."""
    if not tensor.numel() or math.isfinite(tensor.sum()):
        return True
    return all(map(math.isfinite, map(float, tensor.aminmax())))
