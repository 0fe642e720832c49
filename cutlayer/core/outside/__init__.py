"""Code from outside the package: files and modules that the person at this machine has named.

A file is imported under this package (`signbit.py` as `cutlayer.core.outside.signbit_` and a digest of its path): a
process that was started to help finds it by that name, so what is defined in such a file can be pickled.
"""

from .files import load_file as load_file
from .files import load_module as load_module
from .files import load_named as load_named
from .files import named as named
from .origin import is_outside as is_outside
from .origin import plain_names as plain_names
from .origin import written as written
