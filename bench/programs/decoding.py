"""Decoding by a model like Llama 3.2 1B, eager with a cache that grows, and compiled with one of a fixed size: W14."""

import torch
import torch.nn.functional as F

from steps import Workload

LAYERS, WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 16, 2048, 32, 8, 8192, 32000
HEAD = WIDTH // HEADS
BATCH, PROMPT, TOKENS = 4, 16, 32
LONGEST = 64  # of a cache of a fixed size, in tokens
END = -1  # which the vocabulary does not have, so that decoding goes on


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        return self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs, bias=False)


def rotated(x, turn):
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-second, first), -1) * turn[1]


def for_each_head(x):
    batch, heads, length, head = x.shape
    return x[:, :, None].expand(batch, heads, HEADS // KEY_HEADS, length, head).reshape(batch, HEADS, length, head)


class Growing:
    """Keys and values of a layer so far."""

    def __init__(self):
        self.kept = None

    def with_new(self, keys, values, places):
        if self.kept is not None:
            keys, values = torch.cat((self.kept[0], keys), 2), torch.cat((self.kept[1], values), 2)
        self.kept = keys, values
        return keys, values


class Fixed:
    """A cache of keys and values in memory that stays where it is."""

    def __init__(self):
        self.keys, self.values = (torch.zeros(BATCH, KEY_HEADS, LONGEST, HEAD, dtype=torch.bfloat16, device="cuda")
                                  for _ in range(2))

    def with_new(self, keys, values, places):
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)
        return self.keys, self.values


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.queries = linear(WIDTH, WIDTH)
        self.keys, self.values = linear(WIDTH, KEY_HEADS * HEAD), linear(WIDTH, KEY_HEADS * HEAD)
        self.out = linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def forward(self, x, places, turn, mask, cache):
        batch, length, _ = x.shape
        normed = self.before(x)
        queries, keys, values = (of(normed).view(batch, length, -1, HEAD).transpose(1, 2)
                                 for of in (self.queries, self.keys, self.values))
        keys, values = cache.with_new(rotated(keys, turn), values, places)
        attended = F.scaled_dot_product_attention(rotated(queries, turn), for_each_head(keys), for_each_head(values),
                                                  attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        angles = torch.arange(LONGEST)[:, None] * 10000.0 ** -(torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens, places, seen, caches):
        """The next token of each line. `places`: of the tokens; `seen`: how many places the cache has."""
        x, turn = self.embedding(tokens), self.turns[:, places]
        mask = torch.arange(seen, device=tokens.device) <= places[:, None]
        for layer, cache in zip(self.layers, caches):
            x = layer(x, places, turn, mask, cache)
        return F.linear(self.norm(x[:, -1]), self.embedding.weight).argmax(-1, keepdim=True)


def llama():
    torch.manual_seed(1)
    with torch.device("cuda"):
        return Llama().bfloat16().eval()


def decoding(compiled):
    model = llama()
    next_token = torch.compile(model) if compiled else model
    fixed = [Fixed() for _ in range(LAYERS)] if compiled else None
    prompt = torch.randint(0, VOCABULARY, (BATCH, PROMPT), device="cuda")

    @torch.no_grad()
    def step():
        caches = fixed or [Growing() for _ in range(LAYERS)]
        token = model(prompt, torch.arange(PROMPT, device="cuda"), LONGEST if compiled else PROMPT, caches)
        ended = torch.zeros(BATCH, 1, dtype=torch.bool, device="cuda")
        place, total = torch.full((1,), PROMPT, device="cuda"), token
        for i in range(TOKENS):
            token = next_token(token, place, LONGEST if compiled else PROMPT + i + 1, caches)
            total = total + token
            place += 1
            ended |= token == END
            if ended.all().item():
                break
        return total.sum().item()

    return Workload(step, calls=TOKENS)


WORKLOADS = {"W14.eager": lambda: decoding(compiled=False), "W14.compiled": lambda: decoding(compiled=True)}
