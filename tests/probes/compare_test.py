"""Every probe answers the same on the software GPU and through fargpu on the software GPU."""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from rig import SystemTest, paths  # noqa: E402
from rig.process import run  # noqa: E402

SOFTWARE_GPU = paths.BUILD / "server" / "softgpu" / "libfargpu-softgpu.so"
DIRECT = paths.BUILD / "tests" / "softgpu" / "libcuda"
PROBES = paths.BUILD / "tests" / "probes" / "probes"

# Where the answers differ: what is answered directly, what through fargpu, and why that is meant.
SHARING = "the software GPU shares memory by file descriptors only"
DIFFERENT = {
    "ipc_of_foreign": ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE", SHARING),
    "ipc_open_own": ("cannot be probed: cuIpcGetMemHandle(&h, memory()) gives CUDA_ERROR_NOT_SUPPORTED",
                     "CUDA_ERROR_INVALID_CONTEXT", SHARING),
    "ipc_open_nonsense": ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE", SHARING),
    "ipc_close_own": ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE", SHARING),
    "tensor_map_null": ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE", "the software GPU has no tensor maps"),
}


def answers(environment):
    done = run([PROBES], env=environment, seconds=500)
    if done.code != 0:
        raise AssertionError(done.out + done.err)
    return dict(line.split(": ", 1) for line in done.out.splitlines())


class Probes(SystemTest):
    def test_answers(self):
        broker = self.broker(driver=SOFTWARE_GPU)
        direct = answers({"LD_LIBRARY_PATH": str(DIRECT)})
        remote = answers({"LD_LIBRARY_PATH": paths.LIBRARIES, "FARGPU_POOL": broker.pool})
        self.assertEqual(direct.keys(), remote.keys())
        different = {name: (direct[name], remote[name]) for name in direct if direct[name] != remote[name]}
        expected = {name: pair[:2] for name, pair in DIFFERENT.items()}
        self.assertEqual(different, expected, "\n".join(f"{name}: {a} directly, {b} through fargpu"
                                                        for name, (a, b) in different.items()
                                                       if expected.get(name) != (a, b)))
        # What crashes the driver is an error through fargpu; nothing else may crash.
        self.assertEqual([name for name, answer in remote.items() if answer.startswith(("signal", "cannot"))], [])


if __name__ == "__main__":
    unittest.main()
