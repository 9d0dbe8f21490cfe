"""A program of many on one machine, which computes between its steps: L14."""

import torch

WIDTH = 256
BETWEEN = 8  # products of matrices on the processor
KERNELS = 8  # of each kind


def computing_between():
    torch.set_num_threads(1)  # of the machine's processors each program fills one
    torch.manual_seed(1)
    matrix = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    weights = matrix.cuda()

    def step():
        x = matrix
        for _ in range(BETWEEN):
            x = torch.tanh(x @ matrix)
        y = x.cuda()
        for _ in range(KERNELS):
            y = torch.tanh(y @ weights)
        return y.sum().item()

    return step


WORKLOADS = {"L14": computing_between}
