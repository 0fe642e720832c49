"""`python -m cutlayer`, where the command itself is not on the path."""

from .cli.app import main

main()
