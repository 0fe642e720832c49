"""A plan and what follows from it: parties, steps, the order of turns, and facts about a run."""
