"""`python -m cutlayer.cli` is the command `cutlayer`."""

from .app import main

main()
