"""PyTorch: data that workers prepare, forked and spawned, and copies from pinned memory."""

import sys

import torch
from results import Results
from tensors import error_of


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % 10


class OnGpu(torch.utils.data.Dataset):
    """A data set whose items are made on the GPU, by workers."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(torch.full((10,), float(index), device="cuda").sum().item())


def loader(context, **options):
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.DataLoader(Numbers(), batch_size=32, shuffle=True, generator=generator, num_workers=2,
                                       multiprocessing_context=context, pin_memory=True, **options)


def sums(batches):
    out = []
    for images, labels in batches:
        assert images.is_pinned()
        x = images.to("cuda", non_blocking=True)
        y = labels.to("cuda", non_blocking=True)
        out.append((x.sum(dim=(1, 2, 3)) * y).sum())
    return [float(value) for value in out]


def trained(context):
    torch.manual_seed(2)
    torch.backends.cudnn.deterministic = True  # else the gradients of convolutions are sums in any order
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(8 * 14 * 14, 10)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    batches = loader(context, persistent_workers=True)
    for _ in range(2):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to("cuda", non_blocking=True)),
                                                     labels.to("cuda", non_blocking=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [float(loss) for loss in losses]


def prefetched():
    """The next batch is copied on a stream aside while the last one is used."""
    side, out, ahead = torch.cuda.Stream(), [], None
    for images, _ in loader("fork"):
        with torch.cuda.stream(side):
            following = images.to("cuda", non_blocking=True)
        if ahead is not None:
            out.append((ahead * 2).sum())
        torch.cuda.current_stream().wait_stream(side)
        following.record_stream(torch.cuda.current_stream())
        ahead = following
    out.append((ahead * 2).sum())
    return [float(value) for value in out]


def gpu_in_spawned():
    batches = torch.utils.data.DataLoader(OnGpu(), batch_size=1, num_workers=1, multiprocessing_context="spawn")
    return [float(value) for value in batches]


def gpu_in_forked():
    """CUDA cannot be used in a forked child: an exception, and the parent goes on."""
    batches = torch.utils.data.DataLoader(OnGpu(), batch_size=1, num_workers=1, multiprocessing_context="fork")
    error = error_of(lambda: list(batches))
    return [error == "RuntimeError", float(torch.ones(10, device="cuda").sum().item())]


def main():
    results = Results()
    torch.ones(1, device="cuda")  # workers are forked from a process that uses CUDA
    for context in ("fork", "spawn"):
        results.run(f"loaded_{context}", lambda: sums(loader(context)))
        results.run(f"trained_{context}", lambda: trained(context))
    results.run("prefetched", prefetched)
    results.run("gpu_in_spawned", gpu_in_spawned)
    results.run("gpu_in_forked", gpu_in_forked)
    results.write()


if __name__ == "__main__":
    sys.exit(main())
