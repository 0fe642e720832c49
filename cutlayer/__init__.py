"""Cutlayer: split learning that trains, guards, attacks and audits the cut."""

__version__ = "0.1.0"
