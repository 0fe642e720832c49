"""Speed as ratios against the plain way, measured in one run."""
