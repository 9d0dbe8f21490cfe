"""The PyTorch workloads. Usage: workloads.py NAME...; then as steps.py says."""

import torch

import checkpoints
import crowd
import decoding
import models
import reads
import steps
import uploads
from steps import Workload
from training import training

CALLS = 100  # copies or synchronisations a step
TOKENS = 32  # or replays of a graph


def resnet_train(read):
    model = models.resnet50()
    inputs = torch.randn(64, 3, 224, 224).cuda().to(memory_format=torch.channels_last)
    targets = torch.randint(0, 1000, (64,)).cuda()
    return training(model, lambda: torch.nn.functional.cross_entropy(model(inputs), targets),
                    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), read)


def fixed_kernels():
    """As many kernels as take W2's time, of a length that neither the processors nor where memory lies can change."""
    total = torch.zeros(1, device="cuda")

    def step():
        for _ in range(160):
            torch.cuda._sleep(200_000)  # cycles: 0.1 ms
        return total.add_(1).item()

    return step


def resnet_infer():
    model = models.resnet50().eval()
    image = torch.randn(1, 3, 224, 224)

    def step():
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
            return model(image.cuda().to(memory_format=torch.channels_last)).argmax().item()

    return step


def gpt2_train(compiled=False):
    model = models.gpt2()
    if compiled:
        for block in model.blocks:
            block.compile()
    ids = torch.randint(0, models.VOCABULARY, (8, 513)).cuda()

    def loss():
        return torch.nn.functional.cross_entropy(model(ids[:, :-1]).view(-1, models.VOCABULARY), ids[:, 1:].reshape(-1))

    return training(model, loss, torch.optim.AdamW(model.parameters(), lr=3e-4), read=True, clip=True)


def gpt2_generate():
    """Each token is looked at, as a generating program does that stops at an end token."""
    model = models.gpt2().bfloat16().eval()
    prompt = torch.randint(0, models.VOCABULARY, (1, 16)).cuda()

    @torch.inference_mode()
    def step():
        logits, caches = model.decode(model.embed(prompt), None)
        tokens = []
        for i in range(TOKENS):
            token = logits.argmax(-1, keepdim=True)
            tokens.append(token.item())
            if tokens[-1] < 0:  # the end token of a tokenizer that has none
                break
            logits, caches = model.decode(model.embed(token, 16 + i), caches)
        return sum(tokens)

    return step


def graph_replays():
    """A graph that computes a token's logits, replayed; one read at the end."""
    model = models.gpt2().bfloat16().eval()
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")

    @torch.inference_mode()
    def forward():
        logits, _ = model.decode(model.embed(token), None)
        token.copy_((logits.argmax(-1, keepdim=True) + 1) % models.VOCABULARY)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()

    def step():
        for _ in range(TOKENS):
            graph.replay()
        return token.item()

    return step


def small_copies():
    sizes = [8 << i for i in range(10)]  # 8 B to 4 KiB
    sources = [torch.arange(size // 4, dtype=torch.int32).cuda() for size in sizes]

    def step():
        return sum(int(sources[i % len(sources)].cpu()[-1]) for i in range(CALLS))

    return step


def synchronisations():
    x = torch.zeros(32, device="cuda")
    stream = torch.cuda.current_stream()

    def step():
        for _ in range(CALLS):
            x.add_(1)
            stream.synchronize()
        return x[0].item()

    return step


def pinned_decode():
    """The program writes each token into pinned memory, and a kernel reads it there by its pointer."""
    import pinned_kernel

    model = models.gpt2().bfloat16().eval()
    token, position = (torch.zeros(1, dtype=torch.int64).pin_memory() for _ in range(2))
    embedded = torch.zeros(1, 1, 768, dtype=torch.bfloat16, device="cuda")

    @torch.inference_mode()
    def step():
        caches, tokens = None, [1]
        for i in range(TOKENS):
            token[0], position[0] = tokens[-1], i
            pinned_kernel.embed(token, position, model.tokens.weight, model.positions.weight, embedded)
            logits, caches = model.decode(embedded, caches)
            tokens.append(logits.argmax().item())
        return sum(tokens)

    return step


def counted(calls, build):
    """A workload whose steps have so many calls, tokens or replays."""
    return lambda: Workload(build(), calls=calls)


WORKLOADS = {
    "W1": lambda: resnet_train(read=False), "W2": lambda: resnet_train(read=True), "W2.fixed kernels": fixed_kernels,
    "W3": resnet_infer,
    "W4": gpt2_train, "W5": counted(TOKENS, gpt2_generate), "W6.compile": lambda: gpt2_train(compiled=True),
    "W6.graph": counted(TOKENS, graph_replays), "W7.copies": counted(CALLS, small_copies),
    "W7.synchronise": counted(CALLS, synchronisations),
    "W8": counted(TOKENS, pinned_decode), **uploads.WORKLOADS, **checkpoints.WORKLOADS, **decoding.WORKLOADS,
    **reads.WORKLOADS, **crowd.WORKLOADS}

if __name__ == "__main__":
    steps.main(WORKLOADS, torch.cuda.synchronize)
