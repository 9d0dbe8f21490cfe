"""PyTorch: tensors on the GPU that several processes share."""

import sys

import torch
import torch.multiprocessing as mp
from results import Results
from tensors import host, small


def add_one(tasks, answers):
    """Changes tensors in place until told to end."""
    while True:
        tensor = tasks.get()
        if tensor is None:
            return
        tensor.add_(1)
        torch.cuda.synchronize()
        answers.put(float(tensor.sum().item()))
        del tensor


def produce(answers, done):
    """Makes tensors and keeps them until they were used."""
    tensors = [torch.full((1000,), float(i), device="cuda") for i in range(5)]
    for tensor in tensors:
        answers.put(tensor)
    done.wait()


def train(model, steps, answers):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    answers.put(True)


def wait_for_event(event, tensor, answers):
    event.synchronize()
    answers.put(float(tensor.sum().item()))


def changed_in_place():
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    child = context.Process(target=add_one, args=(tasks, answers))
    child.start()
    tensor, sums = small(4096), []
    for _ in range(5):
        tasks.put(tensor)
        sums.append(answers.get(timeout=100))
    tasks.put(None)
    child.join()
    return [*sums, float(tensor.sum().item()), child.exitcode]


def views_of_one_storage():
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    child = context.Process(target=add_one, args=(tasks, answers))
    child.start()
    whole = torch.zeros(4, 1000, device="cuda")
    for row in whole:
        tasks.put(row)
        answers.get(timeout=100)
    tasks.put(whole)
    answers.get(timeout=100)
    tasks.put(None)
    child.join()
    return host(whole)


def several_children():
    context = mp.get_context("spawn")
    answers = context.Queue()
    queues = [context.Queue() for _ in range(3)]
    children = [context.Process(target=add_one, args=(queue, answers)) for queue in queues]
    for child in children:
        child.start()
    tensor, sums = torch.zeros(2048, device="cuda"), []
    for turn in range(6):
        queues[turn % 3].put(tensor)
        sums.append(answers.get(timeout=100))
    for queue in queues:
        queue.put(None)
    for child in children:
        child.join()
    return [*sums, float(tensor.sum().item())]


def made_by_child():
    context = mp.get_context("spawn")
    answers, done = context.Queue(), context.Event()
    child = context.Process(target=produce, args=(answers, done))
    child.start()
    tensors = [answers.get(timeout=100) for _ in range(5)]
    sums = [float((tensor * 2).sum().item()) for tensor in tensors]
    tensors.clear()
    done.set()
    child.join()
    return [*sums, child.exitcode]


def shared_model():
    context = mp.get_context("spawn")
    answers = context.Queue()
    model = torch.nn.Linear(16, 16).to("cuda")
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    model.share_memory()
    for _ in range(2):  # one after the other, for a result that repeats itself
        child = context.Process(target=train, args=(model, 4, answers))
        child.start()
        answers.get(timeout=100)
        child.join()
    return host(model.weight)


def event_of_parent():
    context = mp.get_context("spawn")
    answers = context.Queue()
    tensor = torch.zeros(1 << 20, device="cuda")
    event = torch.cuda.Event(interprocess=True)
    torch.cuda._sleep(1000000)
    tensor.fill_(3)
    event.record()
    child = context.Process(target=wait_for_event, args=(event, tensor, answers))
    child.start()
    value = answers.get(timeout=100)
    child.join()
    return [value, child.exitcode]


def main():
    results = Results()
    for case in (changed_in_place, views_of_one_storage, several_children, made_by_child, shared_model,
                 event_of_parent):
        results.run(case.__name__, case)
    results.write()


if __name__ == "__main__":
    sys.exit(main())
