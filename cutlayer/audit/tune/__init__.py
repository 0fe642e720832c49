"""The plan for a budget: guards and settings are searched, cheap readers first; a full audit has the last word."""
