"""As many helpers in a thread of ours as in any other: sums of another number of parts have other last bits."""

import torch


def count_as_set() -> None:
    """What `torch.set_num_threads` was told holds in this thread as well.

    OpenMP gives every new thread as many helpers as there are cores, until torch happens to set its own number there.
    It does so when it is asked for it, and else with some operations and not with others.
    """
    torch.get_num_threads()
