"""Operations that read a small result back before they end, on a million elements: W15."""

import torch

from steps import Workload

CALLS = 100
ELEMENTS = 1_000_000


def reading(call):
    """Each call reads once."""
    torch.manual_seed(1)
    x = torch.randint(0, 2, (ELEMENTS,), device="cuda")
    many = torch.randint(0, 1000, (ELEMENTS,), device="cuda")
    return Workload(lambda: sum(call(x, many) for _ in range(CALLS)), calls=CALLS)


WORKLOADS = {"W15.nonzero": lambda: reading(lambda x, _: torch.nonzero(x).shape[0]),
             "W15.unique": lambda: reading(lambda _, many: torch.unique(many).shape[0]),
             "W15.any": lambda: reading(lambda x, _: (x > 1).any().item())}
