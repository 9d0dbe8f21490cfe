"""PyTorch's profiler: what is computed under it is the same, whether or not it can see the GPU; what it knows of the
CPU is there."""

import torch
from results import Results
from tensors import data, host
from torch.profiler import ProfilerActivity, profile, record_function, schedule

results = Results()


def work():
    x = data(128, 128)
    with record_function("products"):
        for _ in range(5):
            x = torch.tanh(x @ x * 0.05)
    torch.cuda.synchronize()
    return x


def profiled():
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
        x = work()
    names = {event.key for event in seen.key_averages()}
    on_gpu = sum(event.device_time_total > 0 for event in seen.key_averages())
    print(f"{on_gpu} entries have time on the GPU")  # none where the profiler cannot see it
    assert {"products", "aten::mm", "aten::tanh"} <= names, names
    return host(x)


def scheduled():
    ended = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
                 schedule=schedule(wait=1, warmup=1, active=2),
                 on_trace_ready=lambda seen: ended.append(len(seen.key_averages()) > 0)) as seen:
        for _ in range(4):
            x = work()
            seen.step()
    return [*ended, float(x.sum().item())]


def ranges():
    with torch.autograd.profiler.emit_nvtx():
        torch.cuda.nvtx.range_push("work")
        x = work()
        torch.cuda.nvtx.range_pop()
    return host(x)


def started_and_stopped():
    torch.cuda.profiler.start()
    x = work()
    torch.cuda.profiler.stop()
    return host(x)


results.run("before", lambda: host(work()))
for case in (profiled, scheduled, ranges, started_and_stopped):
    results.run(case.__name__, case)
results.run("after", lambda: host(work()))
results.write()
