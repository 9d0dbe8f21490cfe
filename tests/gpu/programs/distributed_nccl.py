"""torch.distributed over NCCL. Usage: distributed_nccl.py RESULTS DEVICES: one process for each device, and one alone.

Where NCCL cannot work, as its kernels and the program wait for each other in memory that both must see, starting it has
to fail, soon and in words; then every process ends by itself."""

import datetime
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from results import Results

SECONDS = 60


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def member(rank, size, devices, number, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(number), TORCH_NCCL_ASYNC_ERROR_HANDLING="1")
    torch.cuda.set_device(rank % devices)
    try:
        dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=SECONDS))
        x = torch.arange(1000.0, device="cuda") * (rank + 1)
        dist.all_reduce(x)
        gathered = [torch.empty(10, device="cuda") for _ in range(size)]
        dist.all_gather(gathered, torch.full((10,), float(rank), device="cuda"))
        dist.broadcast(x, 0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        values = [float(x.sum().item()), *(float(part.sum().item()) for part in gathered),
                  float(model.module.weight.grad.sum().item())]
        dist.destroy_process_group()
        answers.put((rank, values))
    except Exception as error:  # noqa: BLE001 - which one it is, is the answer
        print(f"rank {rank}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        answers.put((rank, type(error).__name__))
        answers.close()
        answers.join_thread()
        os._exit(1)  # NCCL's threads may be past ending


def group(size, devices):
    context = mp.get_context("spawn")
    answers, number = context.Queue(), port()
    members = [context.Process(target=member, args=(rank, size, devices, number, answers)) for rank in range(size)]
    for one in members:
        one.start()
    for one in members:
        one.join(SECONDS + 40)
    late = [one for one in members if one.is_alive()]
    for one in late:
        one.kill()
        one.join()
    if late:
        raise TimeoutError(f"{len(late)} processes did not end")
    found = dict(answers.get(timeout=10) for _ in range(size))
    failed = [found[rank] for rank in sorted(found) if isinstance(found[rank], str)]
    if failed:
        raise RuntimeError(failed[0])
    return [value for rank in sorted(found) for value in found[rank]]


def main():
    devices = int(sys.argv[2])
    results = Results()
    results.run("alone", lambda: group(1, devices))
    if devices > 1:
        results.run("together", lambda: group(devices, devices))
    else:
        results.run("two_on_one_device", lambda: group(2, 1))  # NCCL refuses that itself
    results.write()


if __name__ == "__main__":
    sys.exit(main())
