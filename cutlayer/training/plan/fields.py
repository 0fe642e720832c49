"""The fields of a plan as a person types them: what each is for, and which list its names come from.

Without heavy imports: `cutlayer --help` reads it, and so does whoever turns what was typed into a plan.
"""

from typing import NamedTuple


class Field(NamedTuple):
    """`kind` is the list of names (`cutlayer list KIND`) where it takes a spec, `type` what it takes else."""

    help: str
    kind: str = ""
    type: type = str
    off: str = ""  # of a switch: the option that turns it off

    @property
    def told(self) -> str:
        return f"{self.help} See: cutlayer list {self.kind}" if self.kind else self.help


# What fields were called before version 0.2, for a sentence to whoever brings a plan from there. No aliases. Some
# have become arguments of another field.
RENAMED = {
    "turn": "local_steps",
    "take": "clients_per_round",
    "frozen": "frozen_parts",
    "shared": "shared_client_network",
    "batch": "batch_size",
    "val": "val_share",
    "aux": "aux_samples",
    "guarded": "guarded_clients",
    "watch": "client_detectors",
    "server_watch": "server_detectors",
    "pieces": "micro_batches",
    "home": "protocol=Bypass(home=...)",
    "fusion": "protocol=Bypass(fusion=...)",
    "weights": "start=Pretrained(...)",
    "skip_tail": "start=Pretrained(..., skip_tail=True)",
    "down": "compression=Compression(answers=...)",
    "back": "compression=Compression(gradients=...)",
}


def option(field: str) -> str:
    """The option for a field, also with a value behind it as in `RENAMED`."""
    name, _, value = field.partition("=")
    return f"--{name.replace('_', '-')}" + (f" '{value}'" if value else "")


FIELDS: dict[str, Field] = {
    "net": Field("Network, e.g. 'ResNet18(depth=2)'.", "nets"),
    "data": Field("Data set, e.g. CIFAR10 or 'Npz(path=\"my.npz\")'.", "data"),
    "protocol": Field("UShaped, Vanilla or 'Bypass(home=0.5, fusion=\"hybrid\")'; Federated: no cut.", "protocols"),
    "guard": Field("Guard, e.g. 'LightSplit(ratio=8)', or none.", "guards"),
    "guarded_clients": Field("How many clients use the guard, the first ones. Default: all.", type=int),
    "clients": Field("How many clients there are.", type=int),
    "partition": Field("Who holds what: IID, 'Dirichlet(alpha=0.3)', 'Labels(m=2)', ByIdentity.", "partitions"),
    "shared_client_network": Field(
        "One head handed on (SCH), or one per client (PCH).", type=bool, off="--own-client-network"
    ),
    "rounds": Field(
        "Relay (one after the other), Wave (all at once, one step), 'SplitFed(version=1)' (merged after "
        "--local-steps batches); 'Relay(ahead=1)' for slow links.",
        "rounds",
    ),
    "rule": Field("How what clients bring is merged, e.g. FedAvg, 'FedMuon(lr=0.05)', Krum.", "rules"),
    "roles": Field("Who learns: AllActive, or 'Frozen(share=0.5)': the others run forward only.", "roles"),
    "clients_per_round": Field("Clients drawn for each pass. Default: all.", type=int),
    "client_detectors": Field(
        "A detector with which clients watch the server, e.g. GradientScrutinizer; it stops them. Repeatable.",
        "detectors",
        list[str],
    ),
    "server_detectors": Field(
        "A detector with which the server watches the clients, e.g. ConsensusCosine; it says who is suspect. "
        "Repeatable.",
        "detectors",
        list[str],
    ),
    "poison": Field(
        "Experiments: what malicious clients do to their own samples, e.g. 'BadNets(share=0.3)'.", "poisons"
    ),
    "local_steps": Field("Batches a client learns from per turn (local steps); 0: its whole epoch.", type=int),
    "epochs": Field("Passes over the training data.", type=int),
    "batch_size": Field("Samples per step.", type=int),
    "micro_batches": Field("Pieces a batch travels in, all in flight at once: for slow links.", type=int),
    "compression": Field(
        "How u comes down and how gradients travel, both ways, e.g. "
        "'Compression(answers=Quantize(bits=8), gradients=Quantize(bits=8))'.",
        "compressions",
    ),
    "client_optimizer": Field("Of head and tail, e.g. 'SGD(lr=0.05, momentum=0.9)'.", "optimizers"),
    "server_optimizer": Field("The same, for the body.", "optimizers"),
    "schedule": Field("Constant, Cosine or 'Steps(every=30)'.", "schedules"),
    "largest_move": Field(
        "Merged weights that have moved farther in a step than so many of a client's own moves are refused by it; 0: "
        "any distance.",
        type=float,
    ),
    "frozen_parts": Field("A part that does not train: head, body or tail. Repeatable.", type=list[str]),
    "adapters": Field(
        "Adapters over a head and body that do not train, e.g. 'LoRA(rank=8, at=\"query,value\")'. none: all trains.",
        "adapters",
    ),
    "start": Field(
        "A file with a whole network's weights to start from: .safetensors, or a torch state dict (never executed); "
        "for other classes 'Pretrained(\"model.safetensors\", skip_tail=True)'. none: from new ones.",
        "starts",
    ),
    "patience": Field("Stop after so many epochs without a better validation accuracy.", type=int),
    "val_share": Field("Share of the training data used for validation.", type=float),
    "aux_samples": Field("Training samples set aside as the attacker's own data.", type=int),
    "seed": Field(
        "Public seed: body, public maps, partition. A run is repeated exactly by this and --private-seed.", type=int
    ),
}
