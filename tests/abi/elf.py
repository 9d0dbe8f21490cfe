"""What a shared library says of itself, read with readelf."""

import collections
import re
import subprocess

Symbol = collections.namedtuple("Symbol", "name type bind visibility section version")


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}).stdout


class Library:
    def __init__(self, path):
        self.path = path
        entries = re.findall(r"^ 0x[0-9a-f]+ \((\w+)\) +(.*)$", readelf("--dynamic", path), re.M)
        self.dynamic = collections.defaultdict(list)
        for tag, value in entries:
            self.dynamic[tag].append(value)
        self.symbols = []
        for line in readelf("--dyn-syms", path).splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
                name, _, version = fields[7].partition("@")
                self.symbols.append(Symbol(name, fields[3], fields[4], fields[5], fields[6], version.lstrip("@")))
        self.exported = [s for s in self.symbols if s.section != "UND" and s.bind != "LOCAL"]
        self.imported = [s for s in self.symbols if s.section == "UND" and s.name]
        # type, bytes in memory, flags
        self.segments = {kind: (int(size, 16), flags.replace(" ", "")) for kind, size, flags in
                         re.findall(r"^  ([A-Z_]+) +(?:0x[0-9a-f]+ ){4}(0x[0-9a-f]+) ([RWE ]{3}) ",
                                    readelf("--program-headers", path), re.M)}
        versions = readelf("--version-info", path)
        self.defined_versions = "Version definition section" in versions
        self.needed_versions = set(re.findall(r"Name: (\S+)  Flags:", versions))

    def names(self, tag):
        """The names in the dynamic section's entries of this kind."""
        return [re.search(r"\[(.*)\]", value)[1] for value in self.dynamic[tag]]
