"""Variants of one plan side by side: trained with the same seeds, on one chart."""

from .run import compare as compare
from .run import summaries as summaries
from .variant_text import variants as variants
