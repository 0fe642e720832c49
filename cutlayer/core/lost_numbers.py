"""A watcher at a client: what is not a number is not sent."""

import torch

from .errors import NonFinite
from .message import Handler, Kind, Message

WHAT = {"z": "what the guard lets out", "du": "the gradient at u"}


def refuse_lost_numbers(message: Message, next: Handler) -> Message:
    """For clients that learn beside others, who would have to live with it. A prediction spoils nothing."""
    if message.kind is not Kind.PREDICT:
        for name, what in WHAT.items():
            if name in message.tensors and not bool(torch.isfinite(message[name]).all()):
                raise NonFinite(f"{what} holds NaN or infinity, and is not sent")
    return next(message)
