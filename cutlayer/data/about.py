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

    def lines(self) -> list[str]:
        """For a person who reads `cutlayer list data`."""
        shape = "x".join(map(str, self.shape)) if self.shape else "any shape"
        sizes = f", {self.sizes[0][0]:,} train, {self.sizes[0][1]:,} test" if self.sizes else ""
        classes = f", {self.classes} classes" if self.classes else ""
        lines = [f"{shape}{classes}{sizes}. Licence: {self.licence}"]
        if self.forms:
            files = " ".join(self.forms[0][:3]) + (" …" if len(self.forms[0]) > 3 else "")
            lines.append(
                f"on disk: {files}" + (f" (or {len(self.forms) - 1} other forms)" if len(self.forms) > 1 else "")
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
