"""The protocol: messages, remote autograd, server and split network. Read four files and you know split learning."""
