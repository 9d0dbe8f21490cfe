"""Tensors that are the same in every run, and what is in them."""

import torch


def data(*shape, dtype=torch.float32, seed=0):
    """Normally distributed, made on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype).to("cuda")


def small(*shape, dtype=torch.float32, seed=0):
    """Small whole numbers, with which sums and products are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype).to("cuda")


def host(tensor):
    """What numpy can hold of it."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
            else tensor).cpu().numpy()


def error_of(function):
    """The name of the exception that a call ends with, or nothing."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - which one it is, is the answer
        return type(error).__name__
    return ""
