"""NVIDIA's CUDA samples as Debian packages them: fetched, and compiled for a purpose.

Needs the network for the package (84 MB, once), the CUDA toolkit and make. Everything that is fetched and made stays in
one folder; nothing is installed.
"""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import packages

CUDA = Path(os.environ.get("CUDA_PATH", "/usr/local/cuda"))
PACKAGE = "nvidia-cuda-samples"
COMPILE_SECONDS = 600

# What a sample's Makefile says of a need that is not the CUDA driver's. The first that is found counts.
GRAPHICS = (r"find(gl|gles|egl|vulkan)\w*\.mk|[dD]3[dD]\d+", "graphics")
LIBRARY = r"-l(cublas|cufft|curand|cusolver|cusparse|npp|nvjpeg|cudla|nvscibuf|freeimage|nvrtc)"
MPI = (r"(mpicxx)", "MPI")


def run(command, seconds, **options):
    """(exit code, or None when it ran out of time; output). Ends the whole process group."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True, **options)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


class Collection:
    """The samples in a folder of their own. `targets` are the architectures after `arch=`, as nvcc's -gencode has them;
    `may_link` says of a library by its name whether samples that need it are wanted; `options` are more of nvcc's."""

    def __init__(self, folder, archives, targets, may_link=lambda _: False, options=""):
        self.folder, self.archives = Path(folder), Path(archives)
        self.targets, self.may_link, self.options = targets, may_link, options
        self.source = self.folder / "usr/share/doc/nvidia-cuda-toolkit/examples/Samples"

    def fetch(self):
        """Downloads and unpacks the package."""
        if not self.source.is_dir():
            packages.fetch(self.archives, "contrib", [PACKAGE])
            packages.extract(self.archives, [PACKAGE], self.folder)

    def version(self):
        [archive] = self.archives.glob(f"{PACKAGE}_*.deb")
        return subprocess.run(["dpkg-deb", "--field", archive, "Version"], check=True, capture_output=True,
                              text=True).stdout.strip()

    def samples(self):
        """The samples' folders."""
        return sorted((folder for folder in self.source.glob("*/*/") if folder.is_dir()),
                      key=lambda folder: folder.name.lower())

    def needs(self, folder):
        """What a sample needs besides the driver and the libraries that may be linked, or nothing."""
        makefile = folder / "Makefile"
        if not makefile.exists():
            return "another build system"
        text = makefile.read_text(errors="replace")
        if re.search(GRAPHICS[0], text):
            return GRAPHICS[1]
        for library in re.findall(LIBRARY, text):
            if not self.may_link(library):
                return f"the library {library}"
        return MPI[1] if re.search(MPI[0], text) else ""

    def compile(self, folder):
        """Nothing if the sample's program is there, else the compiler's first complaint. Both are kept."""
        verdict = folder / "compiled"
        if not verdict.exists():
            makefile = folder / "Makefile"
            text = makefile.read_text(errors="replace")
            # The headers that come with CUDA 13 are written in C++17. Libraries are linked shared, as the toolkit
            # always has them so.
            for pattern, replacement in ((r"-std=c\+\+1[14]", "-std=c++17"), (r"--threads \d+", ""),
                                         (r"-l(cu\w+)_static", r"-l\1"),
                                         (r"-lculibos", "")):
                text = re.sub(pattern, replacement, text)
            makefile.write_text(text)
            flags = " ".join(f"-gencode arch={target}" for target in self.targets)
            code, output = run(["nice", "make", "build", f"CUDA_PATH={CUDA}", "SMS=90", f"GENCODE_FLAGS={flags}",
                                f"EXTRA_NVCCFLAGS={self.options}",
                                f"CUDALIB={CUDA}/lib64/stubs"], COMPILE_SECONDS, cwd=folder)
            complaint = re.search(r".*\berror\b.*|.*undefined reference.*|make: .*", output)
            if code == 0 and (folder / folder.name).exists():
                said = ""
            else:
                said = complaint.group(0).strip() if complaint else "no program of the sample's name comes of it"
            (folder / "compile.log").write_text(output)
            verdict.write_text(said)
        return verdict.read_text()

    def compile_all(self, pool, names=()):
        """(folders that are compiled, {name of one that is not: why}), of these samples or of all."""
        left_out, candidates = {}, []
        for folder in self.samples():
            if names and folder.name not in names:
                continue
            need = self.needs(folder)
            if need:
                left_out[folder.name] = f"needs {need}"
            else:
                candidates.append(folder)
        complaints = list(pool.map(self.compile, candidates))
        left_out |= {folder.name: f"does not compile: `{complaint[:200]}`"
                     for folder, complaint in zip(candidates, complaints) if complaint}
        return [folder for folder, complaint in zip(candidates, complaints) if not complaint], left_out
