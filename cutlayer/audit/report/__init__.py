"""What an audit found, as files a person reads."""

from .files import write as write
