"""Parties on different machines, over gRPC with mutual TLS. The only room that knows grpc and certificates."""

import logging

# Events and their facts are shown by whoever starts logs (logs.py). Python itself would print their bare names.
for _party in ("serve", "join", "grpc"):
    logging.getLogger(f"cutlayer.{_party}").addHandler(logging.NullHandler())
