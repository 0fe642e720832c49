"""What training costs a client in memory, by purpose: counted, not sampled."""

import copy

import torch
from torch import Tensor, nn

from .batch import Batch
from .message import Handler, Kind, Message
from .remote import Remote
from .turn import Client


def client_memory(client: Client, batch: Batch, u: tuple[int, ...]) -> dict[str, int]:
    """Bytes one training step needs: parameters, gradients, optimizer state, activations kept for backward.

    The forward pass runs on a copy against a server that answers zeros of shape `u`: nothing is learnt or sent.
    """
    split = copy.deepcopy(client.split).train()
    parameters = list(split.parameters())
    own = {t.untyped_storage().data_ptr() for t in [*parameters, *split.buffers()]}
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # Kept alive until counted: a freed storage could lend its address to the next one.
        terms = split.terms(batch, Remote(client.number, _zeros(batch, u)))
    state = client.optimizer.state_dict()["state"] if client.optimizer is not None else {}
    del terms
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes([parameter for parameter in parameters if parameter.requires_grad]),
        "optimizer": _bytes([v for entry in state.values() for v in entry.values() if isinstance(v, Tensor)]),
        "activations": sum(held.values()),
    }


def _zeros(batch: Batch, u: tuple[int, ...]) -> Handler:
    def answer(message: Message) -> Message:
        if message.kind is Kind.LOSS:
            return message.reply(loss=batch.x.new_zeros(()))
        return message.reply(u=batch.x.new_zeros(len(message["z"]), *u))

    return answer


def _bytes(tensors: list[Tensor] | list[nn.Parameter]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
