"""The models of the workloads: ResNet-50 of torchvision, and GPT-2 small with a cache for decoding."""

import torch
import torch.nn.functional as F

CONTEXT, VOCABULARY = 1024, 50257


def resnet50():
    import torchvision

    torch.manual_seed(1)
    return torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        """`cache` is this layer's earlier keys and values, or None where there are none; returns the new ones too."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh")), (k, v)


class GPT2(torch.nn.Module):
    """GPT-2 small: 12 layers, 768 wide, 12 heads."""

    def __init__(self, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(CONTEXT, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def decode(self, x, caches):
        """Logits of the last position and the caches, for embedded input."""
        kept = []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks)):
            x, cache = block(x, cache)
            kept.append(cache)
        return F.linear(self.norm(x[:, -1]), self.tokens.weight), kept

    def embed(self, ids, first=0):
        return self.tokens(ids) + self.positions(torch.arange(first, first + ids.shape[1], device=ids.device))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)[0]
        return F.linear(self.norm(x), self.tokens.weight)


def gpt2():
    torch.manual_seed(1)
    return GPT2().cuda()
