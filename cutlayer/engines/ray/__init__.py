"""A fleet on a Ray cluster: the server an actor, its clients in crews, each an actor that plays many of them."""
