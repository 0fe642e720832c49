"""Small models as people write them: a vision transformer, a ConvNeXt, an encoder and a decoder of texts."""

import torch
from torch import nn


class Block(nn.Module):
    """Attention and two layers, each with a way around it."""

    def __init__(self, width, causal=False, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.causal = causal

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Reads sizes between its layers, as most do."""

    def __init__(self, classes=3, width=8, blocks=3):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, 10, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        rows, _, height, across = x.shape
        if height % 4 or across % 4:
            raise ValueError("patches of 4 pixels")
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(rows, -1, -1), x], 1) + self.place[:, : x.shape[1] + 1]
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x)[:, 0]), "features": x}


class Placed(nn.Module):
    """Adds to each sample one row that a layer makes of a table of positions, whatever the batch."""

    def __init__(self, classes=3, width=8, places=500):
        super().__init__()
        self.read, self.table = nn.Linear(16, width), nn.Parameter(torch.ones(places, width))
        self.mix, self.head = nn.Linear(width, width), nn.Linear(width, classes)
        self.last = nn.Linear(width, width)

    def forward(self, x):
        return self.head(self.last(self.read(x) + self.mix(self.table * 2).mean(0)))


class ConvNeXt(nn.Module):
    def __init__(self, classes=3, width=4):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, stride=2)
        self.stages = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(3)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(nn.functional.gelu(self.widen(y)))).permute(0, 3, 1, 2)


class Answer:
    """An object, as libraries give it."""

    def __init__(self, last_hidden_state, other=None):
        self.last_hidden_state, self.other = last_hidden_state, other


class Text(nn.Module):
    """An encoder (RoBERTa's kind), or a decoder (GPT's) with `causal`; words are token ids."""

    def __init__(self, causal=False, classes=3, words=20, width=8, tied=False):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(width, causal) for _ in range(3))
        self.classifier = nn.Linear(width, words if tied else classes, bias=False)
        if tied:
            self.classifier.weight = self.words.weight
        self.causal = causal

    def forward(self, ids):
        ids = ids.long()
        _, length = ids.size()
        places = torch.arange(length, device=ids.device).unsqueeze(0)
        x = self.drop(self.words(ids) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        x = x.view(-1, length, x.size(-1))  # a size read before the cut, as GPT-2 does
        return Answer(self.classifier(x[:, -1] if self.causal else x.mean(1)))


def narrow_vit():
    return ViT(width=4)
