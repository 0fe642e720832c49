"""The entropy coder of an optional package, or an error that names the extra."""

from typing import Any


def library() -> Any:
    """The coder, or an error that names the extra."""
    try:
        import constriction
    except ImportError as error:
        raise ValueError("entropy coding needs constriction: pip install 'cutlayer[entropy]'") from error
    return constriction
