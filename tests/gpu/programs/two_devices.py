"""Cases over two devices, whether of one host or of two."""

import torch
from tensors import host, small


def copying(first, second):
    """Functions that copy between the two, each with what comes of it."""
    def copies():
        x = small(1 << 20)
        y = x.to(second) * 2
        z = y.to(first, non_blocking=True) + x
        torch.cuda.synchronize()
        return host(z)

    def copies_on_streams():
        x = small(1 << 18)
        torch.cuda.synchronize(first)
        with torch.cuda.stream(torch.cuda.Stream(first)), torch.cuda.stream(torch.cuda.Stream(second)):
            for i in range(20):
                x = x.to(first, non_blocking=True) + i
                x = x.to(second, non_blocking=True).remainder(1009)
            return host(x)

    return copies, copies_on_streams
