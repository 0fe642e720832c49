"""Figures of a reconstruction, and the readers that attacks and leak meters share."""
