"""PyTorch: training steps. Usage: torch_train.py RESULTS MODEL STEPS [item] [deterministic]; MODEL is resnet50 or gpt2.

With `item` the loss is read back at every step, else once at the end (all of them). With `deterministic` no kernel adds
in the order in which its blocks happen to run: under load the losses of gpt2 differ from run to run without it (7 of 15
runs on the local driver)."""

import sys
import time

import torch
from results import Results

model_name, steps = sys.argv[2], int(sys.argv[3])
read_each = "item" in sys.argv[4:]
if "deterministic" in sys.argv[4:]:
    torch.use_deterministic_algorithms(True)
results = Results()
dev = "cuda"


def resnet50():
    import torchvision

    torch.manual_seed(1)
    model = torchvision.models.resnet50().to(dev).to(memory_format=torch.channels_last)
    inputs = torch.randn(64, 3, 224, 224).to(dev).to(memory_format=torch.channels_last)
    targets = torch.randint(0, 1000, (64,)).to(dev)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT2(torch.nn.Module):
    """GPT-2 small: 12 layers, 768 wide, 12 heads, 50257 tokens."""

    def __init__(self, vocabulary=50257, context=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt2():
    torch.manual_seed(1)
    model = GPT2().to(dev)
    ids = torch.randint(0, 50257, (8, 513)).to(dev)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


step = {"resnet50": resnet50, "gpt2": gpt2}[model_name]()
losses, times = [], []
for _ in range(steps):
    begin = time.time()
    loss = step()
    losses.append(loss.item() if read_each else loss)
    times.append(time.time() - begin)
torch.cuda.synchronize()
if not read_each:
    losses = torch.stack(losses).tolist()
results.add("losses", losses)
results.entries["losses"]["values"] = losses
results.entries["losses"]["step_ms"] = round(1000 * sorted(times[len(times) // 2:])[len(times) // 4], 2)
print(model_name, losses, flush=True)
results.write()
