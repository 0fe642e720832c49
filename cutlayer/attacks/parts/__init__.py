"""Critics, priors, substitutes and keyed views that several attacks share."""
