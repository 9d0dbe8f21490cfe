"""Weights that are saved, restored and loaded from a file: W12. BENCH_CHECKPOINT_BYTES says how many bytes they have,
BENCH_SAFETENSORS which file."""

import functools
import os

import torch

from steps import Workload

WIDTH = 4096
LAYER_BYTES = 4 * WIDTH * WIDTH


@functools.cache
def model():
    layers = max(1, round(int(os.environ["BENCH_CHECKPOINT_BYTES"]) / LAYER_BYTES))
    torch.manual_seed(1)
    with torch.device("cuda"):
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def size():
    return sum(weight.nbytes for weight in model().parameters())


def to_the_host():
    return {name: weight.cpu() for name, weight in model().state_dict().items()}


def check(there, here):
    """That the first and the last of some weights on the device are those of the host, each byte of them."""
    for name in (next(iter(here)), next(reversed(here))):
        if not torch.equal(there[name], here[name].cuda()) or not torch.equal(there[name].cpu(), here[name]):
            raise RuntimeError(f"{name} differs on the device and the host")


@functools.cache
def saved():
    state = to_the_host()
    check(model().state_dict(), state)
    return state


def corners(weights):
    """A value of each of them."""
    return torch.stack([weight[-1, -1] for weight in weights]).double().sum().item()


def state_dict():
    saved()
    return Workload(lambda: corners(to_the_host().values()), down=size(), warm=0)


def load_state_dict():
    state, turn = saved(), [0]

    def step():
        turn[0] += 1
        for weight in state.values():
            weight[-1, -1] = turn[0]
        model().load_state_dict(state)
        return corners(model().parameters())

    return Workload(step, up=size(), warm=0)


def safetensors():
    import safetensors.torch

    path = os.environ["BENCH_SAFETENSORS"]
    weights, loaded = safetensors.torch.load_file(path), safetensors.torch.load_file(path, device="cuda")
    check(loaded, weights)
    return Workload(lambda: corners(safetensors.torch.load_file(path, device="cuda").values()),
                    up=sum(one.nbytes for one in weights.values()), warm=0)


WORKLOADS = {"W12.state_dict": state_dict, "W12.load_state_dict": load_state_dict, "W12.safetensors": safetensors}
