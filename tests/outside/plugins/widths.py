"""What two_layers.py imports from beside itself."""

MIDDLE = 6
