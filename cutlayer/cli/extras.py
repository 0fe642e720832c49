"""Which extra brings a package that is missing: the way out of an ImportError, in one sentence."""

EXTRAS = {
    "constriction": "entropy",
    "cryptography": "deploy",
    "dp_accounting": "dp",
    "flwr": "flower",
    "grpc": "deploy",
    "mlflow": "mlflow",
    "pillow_heif": "hevc",
    "prometheus_client": "deploy",
    "pyarrow": "text",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "timm": "vision",
    "tokenizers": "text",
    "torchvision": "vision",
    "transformers": "text",
    "wandb": "wandb",
}


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that has what could not be imported; None: it is none of ours."""
    return EXTRAS.get((error.name or "").partition(".")[0])
