"""Weights of a file that a program which starts loads to the device, once: W16. Its word is the path of a file of
safetensors, or of a pickled state_dict (.pt). It prints a line of JSON: the seconds that took, those of processors, the
bytes, a value of what was loaded."""

import json
import sys
import time

import safetensors.torch
import torch

torch.zeros(1, device="cuda")
begin, cpu = time.perf_counter(), time.process_time()
if sys.argv[1].endswith(".pt"):
    weights = torch.load(sys.argv[1], map_location="cuda", weights_only=True)
else:
    weights = safetensors.torch.load_file(sys.argv[1], device="cuda")
torch.cuda.synchronize()
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
print(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": sum(one.nbytes for one in weights.values()),
                  "value": sum(int(one[-1, -1]) for one in weights.values())}))
