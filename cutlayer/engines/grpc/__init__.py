"""Parties on different machines, over gRPC with mutual TLS. The only room that knows grpc and certificates."""
