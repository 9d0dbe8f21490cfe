"""The weights of a file of safetensors once more, as torch.save() writes a state_dict: W16. Its words are the two
paths."""

import os
import sys

import safetensors.torch
import torch

torch.save(safetensors.torch.load_file(sys.argv[1]), sys.argv[2] + ".part")
os.rename(sys.argv[2] + ".part", sys.argv[2])
