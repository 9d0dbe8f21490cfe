"""Training steps of the workloads."""

import torch


def training(model, loss_of, optimizer, read, clip=False):
    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item() if read else loss.detach()

    return step
