"""One run as plain objects: what is trained, how, and by whom."""
