"""S7: from PyTorch's import to the end of a first training step, of ResNet-50 with batch 64. Says how long that
took."""

import json
import time

begin = time.monotonic()
import torch  # noqa: E402

imported = time.monotonic() - begin
import models  # noqa: E402

model = models.resnet50()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(64, 3, 224, 224).cuda().to(memory_format=torch.channels_last)
targets = torch.randint(0, 1000, (64,)).cuda()
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
loss.backward()
optimizer.step()
value = loss.item()
print(json.dumps({"seconds": time.monotonic() - begin, "import": imported, "loss": value}))
