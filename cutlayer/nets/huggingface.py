"""Classifiers of the library transformers, made from a config.json, cut at named layers."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ..core.outside.origin import is_plain
from .at_layers import CutAtLayers
from .base import Shape, check_choice
from .sized import READS_SIZES_ONLY, padding_of

NO_MASK, PADDED = "sdpa without a mask", "sdpa of words alone"  # our names for an attention of the library's
# Fields of a config that make a layer see less than all that came before: the library does that by masks.
WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention")


@dataclass(frozen=True, repr=False)
class HuggingFace(CutAtLayers):
    """A classifier of transformers, cut at named layers: HuggingFace('config.json', at='roberta.encoder.layer.2').

    `config` is a config.json, or a folder with one. Nothing is fetched and no code of the folder is run: weights are
    random, or come from a file of yours (`--start folder/model.safetensors`). Texts are token ids, (length,). All of
    them are read, and padding is a word like any other; with `pad="mask"` nobody looks at the config's pad_token_id,
    and a mask crosses beside z, which tells the server every text's length. Decoders (GPT-2) classify by their last
    position. Images are (channels, height, width).
    """

    config: str
    at: str = ""
    back: str | None = None
    pad: Literal["fixed", "mask"] = "fixed"

    def __post_init__(self) -> None:
        check_choice("HuggingFace: pad", self.pad, ("fixed", "mask"))

    def __repr__(self) -> str:
        # Two machines compare what is in the file, not where it lies.
        config = sha256(self._path().read_bytes()).hexdigest()[:16] if is_plain() else self.config
        pad = "" if self.pad == "fixed" else f", pad={self.pad!r}"
        return f"HuggingFace(config={config!r}, at={self.at!r}, back={self.back!r}{pad})"

    def model(self, shape: Shape | None, classes: int | None) -> nn.Module:
        config = self._read()
        if classes is not None:
            config.num_labels = classes
        if shape is not None:
            self._refuse_shape(config, shape)
        config.use_cache = False
        config.architectures = config.architectures or []
        model = _auto_class(config, self.config).from_config(config, trust_remote_code=False)
        for module in model.modules():
            if type(module).__name__.endswith(
                "RotaryEmbedding"
            ):  # sines of positions, in the type of what it is given
                setattr(module, READS_SIZES_ONLY, True)
        if _is_decoder(model):
            self._refuse_windows(config)
            model.set_attn_implementation(_unmasked_attention())
        if self.pad == "mask":
            self._refuse_no_mask(model)
            model.set_attn_implementation(_padded_attention())
        return model

    def call(self, model: Any, x: Any) -> Any:
        if model.main_input_name != "input_ids":
            return model(**{model.main_input_name: x})
        if self.pad == "mask":
            ids = x.long()
            return model(ids, attention_mask=padding_of(ids, model.config.pad_token_id))
        if not _is_decoder(model):
            return model(x.long())
        # As the library does it where nothing is padded; its own way asks the ids again, on the far side of the cut.
        return model.score(model.base_model(x.long()).last_hidden_state)[:, -1]

    def head(self, shape: Shape) -> nn.Module:
        head = super().head(shape)
        if words := getattr(self._read(), "vocab_size", None):
            head.register_forward_pre_hook(_Vocabulary(words))
        return head

    def check_vocabulary(self, vocabulary: int) -> None:
        known = getattr(self._read(), "vocab_size", None)
        if vocabulary and isinstance(known, int) and vocabulary > known:
            raise ValueError(
                f"{self.config} knows {known} token ids and the tokenizer of the data has {vocabulary}: take the "
                "tokenizer of this network"
            )

    def usual_shape(self) -> Shape:
        config = self._read()
        if hasattr(config, "num_channels"):
            size = getattr(config, "image_size", None) or 224
            return (config.num_channels, size, size) if isinstance(size, int) else (config.num_channels, *size)
        return (min(16, _longest(config) or 16),)

    def _path(self) -> Path:
        path = Path(self.config).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no {path.absolute()}: name a config.json of transformers, or a folder with one; "
                "nothing is fetched by name"
            )
        return path

    def _read(self) -> Any:
        path = self._path()
        transformers = _library()
        try:
            told = json.loads(path.read_bytes())
            kind = told.pop("model_type")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path} is no config.json of transformers, which names a model_type") from error
        try:
            return transformers.AutoConfig.for_model(kind, **told)
        except ValueError as error:
            raise ValueError(f"{path}: the transformers that is here has no model_type {kind!r}") from error

    def _refuse_shape(self, config: Any, shape: Shape) -> None:
        if hasattr(config, "num_channels"):
            if len(shape) != 3 or shape[0] != config.num_channels:
                raise ValueError(f"{self!r} reads images of {config.num_channels} channels; got {tuple(shape)}")
            return
        most = _longest(config)
        if len(shape) != 1:
            raise ValueError(
                f"{self!r} reads token ids, (length,) for each text; got {tuple(shape)}: data with "
                "token ids, e.g. Npz(path='texts.npz', vocabulary=30522)"
            )
        if most is not None and shape[0] > most:
            raise ValueError(f"{self!r} reads at most {most} tokens; got {shape[0]}")

    def _refuse_no_mask(self, model: Any) -> None:
        if model.main_input_name != "input_ids" or _is_decoder(model):
            what = "a decoder reads what came before alone, and classifies by its last position" if _is_decoder(
                model
            ) else "images have no padding"  # fmt: skip
            raise ValueError(f"{self!r}: {what}: take pad='fixed'")
        if not isinstance(model.config.pad_token_id, int):
            raise ValueError(f"{self!r}: the config names no pad_token_id to look away from: take pad='fixed'")

    def _refuse_windows(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        narrow = [name for name in WINDOWS if getattr(config, name, None)]
        if narrow or kinds:
            raise ValueError(
                f"{self!r} lets some layers see a part of the text only ({', '.join([*narrow, *sorted(kinds)])}), "
                "which takes a mask on both sides of the cut: take a network whose layers see all that came before"
            )


@dataclass(frozen=True)
class _Vocabulary:
    """Refuses ids that the network has no word for; torch would say 'index out of range in self'."""

    words: int

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0]
        if x.device.type == "cpu" and x.dim() == 2 and len(x):
            low, high = (int(end) for end in x.aminmax())
            if low < 0 or high >= self.words:
                raise ValueError(
                    f"token ids run from 0 to {self.words - 1} in this network; the data have {low} to {high}: was "
                    "another tokenizer used?"
                )


def _longest(config: Any) -> int | None:
    """How many tokens a text may have; None: any number."""
    try:
        most = getattr(config, "max_position_embeddings", None)
    except NotImplementedError:  # XLNet's way to say so
        return None
    return most if isinstance(most, int) and most > 0 else None


def _is_decoder(model: Any) -> bool:
    return isinstance(getattr(model, "score", None), nn.Module)


def _auto_class(config: Any, told: str) -> Any:
    transformers = _library()
    for one in (transformers.AutoModelForSequenceClassification, transformers.AutoModelForImageClassification):
        if type(config) in one._model_mapping:
            return one
    raise ValueError(
        f"{told}: transformers has no classifier of texts or images for the model_type {config.model_type!r}"
    )


def _unmasked_attention() -> str:
    """torch's attention, causal by itself; the library builds masks for attentions that it knows by name only."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NO_MASK, sdpa_attention_forward)
    return NO_MASK


def _padded_attention() -> str:
    """torch's attention over a mask (B, T) as it came: the library would spread it out before it crosses."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any) -> Any:
        return sdpa_attention_forward(module, query, key, value, attention_mask[:, None, None, :], **others)

    AttentionInterface.register(PADDED, attend)
    AttentionMaskInterface.register(PADDED, lambda *args, attention_mask=None, **others: attention_mask)
    return PADDED


def _library() -> Any:
    try:
        import transformers
    except Exception as error:  # a package beside it may not fit the torch that is here
        raise ValueError(
            f"networks from a config.json need the package transformers ({error}): pip install 'cutlayer[text]'"
        ) from error
    return transformers
