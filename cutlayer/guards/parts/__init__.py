"""Mathematics that several guards share."""
