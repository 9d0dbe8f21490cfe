"""Writes the example of a site from the tutorial, whose commands and settings a test runs.

example_site.py PAGE FOLDER"""

import re
import sys
from pathlib import Path


def main(page, folder):
    part = re.search(r"^## 1\. Tenants\n(.*?)^## ", Path(page).read_text(encoding="utf-8"), re.M | re.S)[1]
    commands, settings = (re.search(rf"^```{language}\n(.*?)^```", part, re.M | re.S)[1] for language in ("sh", "toml"))
    # Where the service manager makes a folder for it, root is an administrator at a Unix socket.
    settings, sockets = re.subn(r'^(listen = "[^"]*)"', r'\1,unix:/run/fargpu/socket"', settings, flags=re.M)
    assert sockets == 1, "the settings of the tutorial name no address"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fargpud.toml").write_text("# A site with three tenants; make-credentials makes the files that it "
                                         "names.\n" + settings,
                                         encoding="utf-8")
    script = folder / "make-credentials"
    script.write_text("#!/bin/sh\n# Makes the certificates and tokens of the example in the present folder.\n"
                      "# gpuhost.example.org stands for the name by which clients reach the host.\nset -eu\n" +
                      commands, encoding="utf-8")
    script.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
