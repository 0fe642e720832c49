"""The laws of plug-ins, for whoever writes one: `cutlayer check my.py:SignBit()` tries them on toy shapes.

A law is a plain function of a plug-in: it returns nothing where it holds, and raises AssertionError with a sentence
where it is broken. Laws that a plan is held to before it starts live in `training.laws`.
"""

from .run import Finding as Finding
from .run import check as check
from .run import laws as laws
