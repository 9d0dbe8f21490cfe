"""Debian's packages, downloaded and unpacked into folders of our own: nothing is installed."""

import subprocess

MIRROR = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian"


def fetch(archives, sections, packages):
    """Downloads the packages that are not in the folder yet, with lists and settings of apt's that are its own."""
    missing = [name for name in packages if not list(archives.glob(f"{name}_*.deb"))]
    if not missing:
        return
    for folder in ("lists/partial", "cache/archives/partial"):
        (archives / folder).mkdir(parents=True, exist_ok=True)
    (archives / "sources.list").write_text(f"deb {MIRROR} bookworm {sections}\n")
    options = [f"Dir::Etc::SourceList={archives}/sources.list", "Dir::Etc::SourceParts=-",
               f"Dir::State::Lists={archives}/lists", f"Dir::Cache={archives}/cache", "APT::Sandbox::User="]
    apt_get = ["apt-get", *(part for option in options for part in ("-o", option))]
    subprocess.run([*apt_get, "update"], check=True)
    subprocess.run([*apt_get, "download", *missing], check=True, cwd=archives)


def extract(archives, packages, folder):
    for name in packages:
        [archive] = archives.glob(f"{name}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
