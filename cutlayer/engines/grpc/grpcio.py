"""The package grpcio, or what to install: who only trains in one process does without."""

try:
    import grpc
except ImportError as error:
    raise ValueError("a run between machines needs the package grpcio: pip install 'cutlayer[deploy]'") from error

__all__ = ["grpc"]
