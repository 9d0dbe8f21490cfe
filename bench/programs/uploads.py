"""Training whose data or parameters come from the host in every step, as programs outside of benchmarks have it: W9,
W10, W11."""

import itertools

import torch

import models
from steps import Workload
from training import training

BATCH = 64
EPOCH_BATCHES = 24
BATCHES_KEPT = 4
OFFLOADED = 25_000_000  # parameters, of four bytes each


class Uploads:
    """Batches in pinned memory, each with contents of its own, that are uploaded without waiting."""

    def __init__(self):
        self.batches = [torch.randn(BATCH, 3, 224, 224).pin_memory() for _ in range(BATCHES_KEPT)]
        self.read = [torch.cuda.Event() for _ in self.batches]  # its upload is over
        self.made = itertools.count()

    @property
    def bytes(self):
        return self.batches[0].nbytes

    def next(self):
        """A batch on the device, or on its way there, by the current stream."""
        i = next(self.made)
        batch, read = self.batches[i % BATCHES_KEPT], self.read[i % BATCHES_KEPT]
        read.synchronize()  # before the program writes there again
        batch[:, 0, 0, 0] = float(i % 100) / 100
        uploaded = batch.to("cuda", non_blocking=True)
        read.record()
        return uploaded.to(memory_format=torch.channels_last)


class Ahead:
    """Uploads by a second stream, a step ahead of the training."""

    def __init__(self, uploads):
        self.uploads, self.stream = uploads, torch.cuda.Stream()
        self.upload()

    def upload(self):
        with torch.cuda.stream(self.stream):
            self.uploaded = self.uploads.next()

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.uploaded
        batch.record_stream(torch.cuda.current_stream())
        self.upload()
        return batch


def fresh_batches(ahead):
    model, uploads = models.resnet50(), Uploads()
    targets = torch.randint(0, 1000, (BATCH,)).cuda()
    source = Ahead(uploads) if ahead else uploads
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = training(model, lambda: torch.nn.functional.cross_entropy(model(source.next()), targets), optimizer,
                    read=False)
    return Workload(step, up=uploads.bytes)


class Images(torch.utils.data.Dataset):
    """Random images of bytes, as they come from a decoder."""

    def __init__(self):
        self.images = torch.randint(0, 256, (256, 3, 224, 224), dtype=torch.uint8)

    def __len__(self):
        return EPOCH_BATCHES * BATCH

    def __getitem__(self, i):
        return self.images[i % len(self.images)].clone(), i % 1000


def data_loader():
    """A step is an epoch, whose last loss is read."""
    model = models.resnet50()
    loader = torch.utils.data.DataLoader(Images(), BATCH, num_workers=4, pin_memory=True, persistent_workers=True,
                                         multiprocessing_context="fork")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = {}

    def loss():
        images = batch["images"].to("cuda", non_blocking=True).to(memory_format=torch.channels_last).float().div_(255)
        return torch.nn.functional.cross_entropy(model(images), batch["labels"].to("cuda", non_blocking=True))

    train = training(model, loss, optimizer, read=False)

    def epoch():
        for batch["images"], batch["labels"] in loader:
            last = train()
        return last.item()

    return Workload(epoch, up=EPOCH_BATCHES * BATCH * 3 * 224 * 224, warm=0)


def offloading():
    """An optimizer whose state is on the host: the gradients go down, and when they are there the weights go up."""
    torch.manual_seed(1)
    weights = torch.randn(OFFLOADED, device="cuda")
    gradients = torch.empty_like(weights)
    host_gradients, host_weights = (torch.empty(OFFLOADED, pin_memory=True) for _ in range(2))
    host_weights.copy_(weights)
    some = slice(None, None, 4096)  # of the parameters, for a whole update would be the processor's time

    def step():
        torch.mul(weights, 0.01, out=gradients)
        host_gradients.copy_(gradients, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        host_weights[some] -= host_gradients[some]
        weights.copy_(host_weights, non_blocking=True)
        return host_gradients[some].sum().item()

    return Workload(step, up=weights.nbytes, down=gradients.nbytes)


WORKLOADS = {"W9.one stream": lambda: fresh_batches(ahead=False),
             "W9.a second stream": lambda: fresh_batches(ahead=True),
             "W10": data_loader, "W11": offloading}
