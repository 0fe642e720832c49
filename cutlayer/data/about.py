"""What is known of a set before it is read: its name, shape, sizes, files and terms."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class About:
    """Facts of a source, for `cutlayer list data` and `cutlayer data check`. None: whatever the files hold."""

    name: str
    licence: str
    origin: str = ""  # where a person gets the files; said when one is missing
    shape: tuple[int, ...] | None = None  # of one sample
    classes: int | None = None
    sizes: tuple[tuple[int, int], ...] = ()  # train and test of every form there is, the usual one first
    # Every form the set may lie in below the data folder, each with all its files; a folder ends in "/".
    forms: tuple[tuple[str, ...], ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict, hash=False)  # as published, by the name of the file

    def places(self, index: int) -> tuple[str, ...]:
        """Where the file at this place of the forms may lie, the first choice first."""
        return tuple(form[index] for form in self.forms)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
