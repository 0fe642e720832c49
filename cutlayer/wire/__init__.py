"""What crosses the cut, as bytes: frames, the ledger that counts them, recorded transcripts, codecs."""

from .frames import WireError as WireError
from .frames import decode as decode
from .frames import encode as encode
from .frames import size as size
from .ledger import DOWN as DOWN
from .ledger import UP as UP
from .ledger import Ledger as Ledger
