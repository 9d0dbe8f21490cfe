"""Where the build put things. CMake says so in the environment of each test."""

import os
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("FARGPU_BUILD", SOURCE / "build"))

FARGPU = BUILD / "bin" / "fargpu"
FARGPUD = BUILD / "bin" / "fargpud"
LIBRARIES = BUILD / "lib"
FAKE_DRIVER = BUILD / "tests" / "fake_driver" / "libfargpu-fake.so"
SOFTWARE_GPU = BUILD / "server" / "softgpu" / "libfargpu-softgpu.so"
KERNEL_PROGRAMS = BUILD / "tests" / "kernels"
PROGRAMS = BUILD / "tests" / "system"

# How sessions of tests travel that do not say how: tcp, shm or ucx, which is RDMA by UCX's own TCP.
TRANSPORT = os.environ.get("FARGPU_TEST_TRANSPORT", "tcp")
# What clients and brokers are told for the last of these.
UCX_CLIENT = {"FARGPU_TRANSPORT": "rdma", "FARGPU_RDMA_TRANSPORTS": "tcp"}
UCX_BROKER = ("--no-sandbox", "--rdma-transports", "tcp")
UCX_PLUGIN = LIBRARIES / "libfargpu-ucx.so"

# Programs that are not built with the sanitizer need its runtime before they load a library that is.
SANITIZER_RUNTIME = os.environ.get("FARGPU_SANITIZER_RUNTIME", "")
SANITIZED = bool(SANITIZER_RUNTIME)
