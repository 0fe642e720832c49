"""Messages that somebody has changed."""

from dataclasses import replace


def other(**changes):
    return lambda message: replace(message, **{name: change(message) for name, change in changes.items()})


def tensor(name, change):
    """The message with one tensor changed, added (from `None`) or, where `change` is None, left out."""

    def made(message):
        tensors = {one: t for one, t in message.tensors.items() if one != name or change is not None}
        return replace(message, tensors=tensors if change is None else {**tensors, name: change(tensors.get(name))})

    return made


def put(value):
    def made(t):
        t = t.clone()
        t.reshape(-1)[-1] = value
        return t

    return made
