"""The packages as people get them: what is in them, and that they install, run and go again. The systems that they are
installed into are folders, which know of no other package than a C library."""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from rig import SystemTest, paths
from rig.process import run
from rig.small_disk import SmallDisk, possible

SOURCE = Path(__file__).resolve().parents[2]
COMPONENTS = ("client", "server", "softgpu", "dev")
PLUGINS = ("ucx", "etcd")  # these need libraries of the system that builds them
IN_PACKAGE = {
    "client": ["bin/fargpu", "lib/fargpu/libcuda.so.1", "lib/fargpu/libnvidia-ml.so.1", "lib/fargpu/libfargpu-nccl.so",
               "share/man/man1/fargpu.1", "share/man/man7/fargpu-environment.7",
               "share/bash-completion/completions/fargpu",
               "share/zsh/site-functions/_fargpu",
               "share/zsh/vendor-completions/_fargpu", "share/fish/vendor_completions.d/fargpu.fish"],
    "server": ["bin/fargpud", "libexec/fargpu/fargpu-worker", "lib/systemd/system/fargpud.service",
               "lib/sysusers.d/fargpud.conf", "share/fargpu/fargpud.toml", "share/fargpu/example-site/fargpud.toml",
               "share/fargpu/example-site/make-credentials",
               "share/fargpu/monitoring/fargpu-dashboard.json", "share/fargpu/monitoring/fargpu-alerts.yaml",
               "share/man/man8/fargpud.8", "share/man/man5/fargpud.toml.5", "share/bash-completion/completions/fargpud",
               "share/zsh/site-functions/_fargpud", "share/zsh/vendor-completions/_fargpud",
               "share/fish/vendor_completions.d/fargpud.fish"],
    "softgpu": ["libexec/fargpu/libfargpu-softgpu.so", "libexec/fargpu/vector_add_runtime"],
    "dev": ["lib/fargpu/libcuda.so", "lib/fargpu/libnvidia-ml.so"] +
           [f"share/doc/fargpu-dev/examples/{name}"
            for name in ("graph.cu", "vector_add_driver.cpp", "vector_add_runtime.cu")],
}
for component, files in IN_PACKAGE.items():
    files.append(f"share/doc/fargpu-{component}/copyright")


def command(*arguments):
    return subprocess.run(list(map(str, arguments)), check=True, capture_output=True, text=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


class Packages(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        held = tempfile.TemporaryDirectory()
        cls.addClassCleanup(held.cleanup)
        cls.made = Path(held.name)
        cls.version = version = command(paths.BUILD / "bin" / "fargpu", "--version").split()[1]
        command(sys.executable, "-B", SOURCE / "codegen" / "packaging" / "make_packages.py", paths.BUILD, cls.made,
                shutil.which("cpack"), version)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def package(self, component, ending):
        found = list(self.made.glob(f"fargpu-{component}[-_]*{ending}"))
        self.assertEqual(len(found), 1, (component, ending))
        return found[0]

    def files(self, prefix):
        return sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir())

    def assert_all_is_there(self, prefix):
        files = self.files(prefix)
        for component in COMPONENTS:
            self.assertLessEqual(set(IN_PACKAGE[component]), set(files), component)
        self.assertEqual(set(files) - {one for some in IN_PACKAGE.values() for one in some}, set())
        for name in ("bin/fargpu", "bin/fargpud", "libexec/fargpu/fargpu-worker", "lib/fargpu/libcuda.so.1",
                     "lib/fargpu/libnvidia-ml.so.1", "lib/fargpu/libfargpu-nccl.so",
                     "libexec/fargpu/libfargpu-softgpu.so"):
            sections = command("readelf", "--wide", "--sections", prefix / name)
            self.assertNotIn(" .symtab ", sections, f"{name} is not stripped")
            self.assertNotIn(" .debug_", sections, f"{name} is not stripped")
        for path in prefix.rglob("*"):
            self.assertFalse(path.lstat().st_mode & 0o6022 and not path.is_symlink(), path)

    def assert_runs(self, prefix):
        """The installed parts alone serve a CUDA program, and each finds the others."""
        host = self.start([prefix / "bin" / "fargpud", "--driver",
                           prefix / "libexec" / "fargpu" / "libfargpu-softgpu.so", "--listen",
                           "127.0.0.1:0", "--config", os.devnull, "--image-folder", ""])
        port = host.err.find(lambda line: " listening " in line and line.rsplit("port=", 1)[1])[0]
        environment = {"FARGPU_POOL": f"127.0.0.1:{port}"}
        done = run([prefix / "bin" / "fargpu", "run", "--", prefix / "libexec" / "fargpu" / "vector_add_runtime"],
                   env=environment)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("PASSED", done.out)
        done = run([prefix / "bin" / "fargpu", "run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"], env=environment)
        self.assertEqual(done.out.strip(), str(prefix / "lib" / "fargpu"))
        host.close()

    def assert_the_first_run_works(self, prefix):
        """The tutorial's commands for installed packages, with this folder for /usr."""
        page = (SOURCE / "docs" / "tutorial" / "first-run.md").read_text(encoding="utf-8")
        broker, program = re.search(r"^## 1\..*?^```sh\n(.*?)^```", page, re.M | re.S)[1].splitlines()
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        options = f'--config /dev/null --image-folder "" --listen 127.0.0.1:{port}'
        script = "\n".join(["set -e", broker.replace("fargpud ", f"fargpud {options} "), "trap 'kill $!' EXIT",
                            f"until (: < /dev/tcp/127.0.0.1/{port}) 2>/dev/null; do kill -0 $!; sleep 0.02; done",
                            program.replace(":8470", f":{port}")]).replace("/usr/", f"{prefix}/")
        done = run(["bash", "-c", script], env={"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"})
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("PASSED", done.out)

    def service_program(self, prefix):
        return re.search(r"^ExecStart=(\S+)", (prefix / "lib" / "systemd" / "system" / "fargpud.service").read_text(),
                         re.M)[1]

    def dpkg(self, *arguments):
        """Without a change of root, for which the folder would need a shell."""
        return subprocess.run(["dpkg", f"--root={self.root}", "--force-script-chrootless", "--force-not-root",
                               "--log=/dev/null", *map(str, arguments)],
                              capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})

    def libc_of(self, version, root=None):
        """A system that has this C library and nothing else."""
        root = root or self.root
        state = root / "var" / "lib" / "dpkg"
        for folder in (state / "info", state / "updates", root / "etc"):
            folder.mkdir(parents=True, exist_ok=True)
        (state / "status").write_text("".join(
            f"Package: {name}\nStatus: install ok installed\nMaintainer: none\nArchitecture: amd64\nVersion: "
            f"{version}\nDescription: a stand-in\n\n"
            for name in ("libc6", "libstdc++6", "libgcc-s1")))
        (state / "info" / "format").write_text("1\n")

    @unittest.skipUnless(os.geteuid() == 0, "packages are installed by root")
    def test_deb(self):
        self.libc_of("2.34")
        done = self.dpkg("-i", *(self.package(component, ".deb") for component in COMPONENTS))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        prefix = self.root / "usr"
        self.assert_all_is_there(prefix)
        self.assertEqual(self.service_program(prefix), "/usr/bin/fargpud")
        self.assertRegex((self.root / "etc" / "passwd").read_text(), r"(?m)^fargpud:")
        self.assert_runs(prefix)
        self.assert_the_first_run_works(prefix)
        done = self.dpkg("-i", *(self.package(component, ".deb") for component in COMPONENTS))
        self.assertEqual(done.returncode, 0, "a second time: " + done.stdout + done.stderr)
        done = self.dpkg("--purge", *(f"fargpu-{component}" for component in COMPONENTS))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.files(prefix), [])

    @unittest.skipUnless(os.geteuid() == 0, "packages are installed by root")
    def test_an_older_libc_takes_the_client_alone(self):
        self.libc_of("2.28")
        self.assertEqual(self.dpkg("-i", self.package("client", ".deb")).returncode, 0)
        done = self.dpkg("-i", self.package("server", ".deb"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libc6 (>= 2.34)", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "packages are installed by root")
    def test_rpm(self):
        """Its scripts are those of the .deb, and would need a shell in the folder."""
        packages = [self.package(component, ".rpm") for component in COMPONENTS]
        command("rpm", "--root", self.root, "--install", "--nodeps", "--noscripts", *packages)
        prefix = self.root / "usr"
        self.assert_all_is_there(Path(shutil.copytree(prefix, self.root / "copy",
                                                      ignore=shutil.ignore_patterns("sysimage"), symlinks=True)))
        self.assertEqual(self.service_program(prefix), "/usr/bin/fargpud")
        self.assert_runs(prefix)
        command("rpm", "--root", self.root, "--erase", "--nodeps", "--noscripts",
                *(f"fargpu-{component}" for component in COMPONENTS))
        self.assertEqual([name for name in self.files(prefix) if "sysimage" not in name], [])

    def test_rpm_says_what_it_needs_and_offers_nobodys_library(self):
        client, server = (self.package(component, ".rpm") for component in ("client", "server"))
        self.assertIn("libc.so.6(GLIBC_2.28)(64bit)", command("rpm", "--query", "--package", "--requires", client))
        self.assertIn("libc.so.6(GLIBC_2.34)(64bit)", command("rpm", "--query", "--package", "--requires", server))
        self.assertNotIn("libcuda", command("rpm", "--query", "--package", "--provides", client))

    def test_archives(self):
        """Unpacked below any prefix, one over the other."""
        for component in COMPONENTS:
            archive = self.package(component, ".tar.gz")
            command("tar", "-C", self.root, "--strip-components=1", "--no-same-owner", "-xzf", archive)
            names = {name.split("/")[0] for name in command("tar", "-tzf", archive).split()}
            self.assertEqual(names, {archive.name.removesuffix(".tar.gz").replace(f"-{component}", "", 1)})
        self.assert_all_is_there(self.root)
        self.assertEqual(self.service_program(self.root), "/usr/local/bin/fargpud")
        self.assert_runs(self.root)
        shown = run([self.root / "bin" / "fargpud", "--help"]).out
        self.assertIn(f"default: {self.root}/etc/fargpu/fargpud.toml", shown)
        done = run([self.root / "bin" / "fargpud", "--config", os.devnull, "--listen", "127.0.0.1:0", "--driver",
                    "none"])
        self.assertEqual(done.code, 1)
        self.assertIn("name another by --driver, such as the software GPU, "
                      f"{self.root}/libexec/fargpu/libfargpu-softgpu.so", done.err)

    def test_the_plugin_for_etcd_is_a_package_of_its_own(self):
        """It goes with the server of its release and the gRPC that it was built with; fargpud says when it is missing,
        and finds it below its own prefix."""
        needs = command("dpkg-deb", "--field", self.package("etcd", ".deb"), "Depends")
        self.assertIn(f"fargpu-server (= {self.version})", needs)
        self.assertRegex(needs, r"\blibgrpc\+\+\d")
        needs = command("rpm", "--query", "--package", "--requires", self.package("etcd", ".rpm"))
        self.assertIn(f"fargpu-server = {self.version}\n", needs)
        self.assertRegex(needs, r"(?m)^libgrpc\+\+\.so\.")

        def unpack(component):
            command("tar", "-C", self.root, "--strip-components=1", "--no-same-owner", "-xzf",
                    self.package(component, ".tar.gz"))

        unpack("server")
        before = set(self.files(self.root))
        member = [self.root / "bin" / "fargpud", "--config", os.devnull, "--listen", "127.0.0.1:0", "--image-folder",
                  "", "--driver", paths.SOFTWARE_GPU, "--pool", "p", "--pool-registry", "http://127.0.0.1:1"]
        done = run(member)
        self.assertEqual(done.code, 2)
        self.assertIn("the plugin libfargpu-etcd.so is missing; install the package fargpu-etcd", done.err)
        unpack("etcd")
        self.assertEqual(set(self.files(self.root)) - before,
                         {"lib/fargpu/libfargpu-etcd.so", "share/doc/fargpu-etcd/copyright"})
        host = self.start(member)
        host.err.find(lambda line: "pool out of reach" in line and "127.0.0.1:1" in line)
        host.close()

    def quickstart_beside(self, ending, components=("client", "server", "softgpu")):
        shutil.copy(SOURCE / "examples" / "quickstart", self.root)
        shutil.copy(self.made / "SHA256SUMS", self.root)
        for component in components:
            shutil.copy(self.package(component, ending), self.root)
        return run([self.root / "quickstart"], seconds=60)

    def test_quickstart_uses_packages_that_lie_beside_it(self):
        """Without its repository, and without leaving anything."""
        for ending in (".tar.gz", ".deb"):
            with self.subTest(ending):
                for old in self.root.iterdir():
                    old.unlink()
                done = self.quickstart_beside(ending)
                self.assertEqual((done.code, done.err), (0, ""))
                self.assertIn(f"unpacking the packages of fargpu {self.version} in {self.root}", done.out)
                self.assertIn("PASSED", done.out)
                self.assertEqual(len(self.files(self.root)), 5)

    def test_quickstart_names_what_is_missing_or_damaged(self):
        done = self.quickstart_beside(".tar.gz", ("client", "softgpu"))
        self.assertEqual(done.code, 1)
        name = self.package("server", ".tar.gz").name
        self.assertIn(f"{self.root} has no {name}; put the packages fargpu-client, fargpu-server and fargpu-softgpu of "
                      "one version there",
                      done.err)
        (self.root / name).write_bytes(self.package("server", ".tar.gz").read_bytes()[:-1])
        done = run([self.root / "quickstart"])
        self.assertEqual(done.code, 1)
        self.assertIn(f"{self.root}/{name} is not the file that SHA256SUMS there lists; copy it again", done.err)

    def disk(self, size, free):
        disk = SmallDisk(self.root, size)
        self.addCleanup(disk.close)
        disk.fill(but=free)
        return disk

    def newer(self, package):
        """A copy of the package under a later version."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        tree, newer = folder / "tree", folder / "newer.deb"
        command("dpkg-deb", "--raw-extract", package, tree)
        control = tree / "DEBIAN" / "control"
        control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\g<1>+later", control.read_text()))
        command("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, newer)
        return newer

    @unittest.skipUnless(os.geteuid() == 0 and possible(), "packages are installed by root, on a disk of their own")
    def test_deb_on_a_full_disk(self):
        """An upgrade that finds no room says so and leaves the old files; with room it goes on."""
        newer = self.newer(self.package("client", ".deb"))
        disk = self.disk("200m", 100 << 20)
        dpkg = ("dpkg", f"--root={disk.path}", "--force-script-chrootless", "--force-not-root", "--log=/dev/null", "-i")
        self.libc_of("2.34", disk.seen)
        self.assertEqual(disk.run(*dpkg, self.package("client", ".deb")).code, 0)
        prefix = disk.seen / "usr"
        before = {name: hashlib.sha256((prefix / name).read_bytes()).digest() for name in self.files(prefix)}
        disk.fill(but=1 << 20)
        done = disk.run(*dpkg, newer)
        self.assertNotEqual(done.code, 0)
        self.assertIn("No space left on device", done.err)
        self.assertEqual({name: hashlib.sha256((prefix / name).read_bytes()).digest() for name in self.files(prefix)},
                         before)
        self.assertEqual(disk.run(disk.path / "usr" / "bin" / "fargpu", "--version").out, f"fargpu {self.version}\n")
        disk.empty()
        done = disk.run(*dpkg, newer)
        self.assertEqual(done.code, 0, done.err)

    @unittest.skipUnless(possible(), "this machine lets nobody mount a tmpfs")
    def test_archives_on_a_full_disk(self):
        disk = self.disk("4m", 1 << 20)
        archive = self.package("client", ".tar.gz")
        done = disk.run("tar", "-C", disk.path, "--strip-components=1", "--no-same-owner", "-xzf", archive)
        self.assertNotEqual(done.code, 0)
        self.assertIn("No space left on device", done.err)
        done = disk.run(SOURCE / "examples" / "quickstart", "--packages", self.made, env={"TMPDIR": disk.path})
        self.assertEqual(done.code, 1)
        self.assertIn("No space left on device", done.err)
        self.assertRegex(done.err, f"{archive} cannot be unpacked into {disk.path}/.*TMPDIR names another folder")

    def test_each_package_has_the_version_of_the_commands(self):
        for component in COMPONENTS + PLUGINS:
            self.assertEqual(command("dpkg-deb", "--field", self.package(component, ".deb"), "Version").strip(),
                             self.version)
            self.assertEqual(command("rpm", "--query", "--package", "--queryformat", "%{VERSION}",
                                     self.package(component, ".rpm")), self.version)
            self.assertIn(f"-{self.version}-", self.package(component, ".tar.gz").name)

    def test_checksums(self):
        listed = dict(reversed(line.split()) for line in (self.made / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(listed), {path.name for path in self.made.iterdir()} - {"SHA256SUMS"})
        self.assertEqual(len(listed), 3 * (len(COMPONENTS) + len(PLUGINS)) + 1)
        for name, told in listed.items():
            self.assertEqual(hashlib.sha256((self.made / name).read_bytes()).hexdigest(), told)

    def key(self, home):
        """A key that may sign, in a folder of gpg's own."""
        home.mkdir(mode=0o700)
        environment = {**os.environ, "GNUPGHOME": str(home), "LC_ALL": "C"}
        self.addCleanup(subprocess.run, ["gpgconf", "--kill", "all"], env=environment, check=False)
        subprocess.run(["gpg", "--batch", "--passphrase", "", "--quick-gen-key", "makers@example.org", "ed25519",
                        "sign"], env=environment, check=True, capture_output=True)
        return environment

    def sign(self, folder, environment, key="makers@example.org"):
        return subprocess.run([SOURCE / "codegen" / "packaging" / "sign_packages.py", folder, key], env=environment,
                              capture_output=True, text=True)

    def test_a_release_is_signed_and_users_can_tell(self):
        makers = self.key(self.root / "makers")
        release = self.root / "release"
        shutil.copytree(self.made, release)
        added = release / f"fargpu-client_{self.version}_arm64.deb"
        added.write_bytes(b"made by another machine")
        done = self.sign(release, makers)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(added.name, (release / "SHA256SUMS").read_text())

        # The commands of the guide, by somebody who has the public key.
        (self.root / "users").mkdir(mode=0o700)
        users = {**makers, "GNUPGHOME": str(self.root / "users")}
        self.addCleanup(subprocess.run, ["gpgconf", "--kill", "all"], env=users, check=False)
        (release / "fargpu-key.asc").write_bytes(subprocess.run(
            ["gpg", "--armor", "--export", "makers@example.org"], env=makers, check=True, capture_output=True).stdout)
        guide = (SOURCE / "docs" / "guide" / "installing.md").read_text(encoding="utf-8")
        commands = re.search(r"^```sh\n(gpg --import .*?)^```", guide, re.M | re.S)[1]

        def verify():
            return subprocess.run(["bash", "-e", "-c", commands], cwd=release, env=users, capture_output=True,
                                  text=True)

        done = verify()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Good signature", done.stderr)
        self.assertIn(f"{self.package('client', '.deb').name}: OK", done.stdout)
        added.write_bytes(b"made by somebody else")
        self.assertNotEqual(verify().returncode, 0)
        sums = (release / "SHA256SUMS").read_text()
        (release / "SHA256SUMS").write_text(sums.replace("0", "1"))
        self.assertIn("BAD signature", verify().stderr)
        (release / "SHA256SUMS").write_text(sums)

        done = self.sign(release, makers)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{added} is not the file that SHA256SUMS there lists; make the packages again", done.stderr)
        added.write_bytes(b"made by another machine")
        done = self.sign(release, makers, "nobody@example.org")
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpg has not signed with the key 'nobody@example.org'", done.stderr)
        self.assertFalse((release / "SHA256SUMS.asc").exists())

    def foreign(self, binaries, folder):
        return subprocess.run([sys.executable, "-B", SOURCE / "codegen" / "packaging" / "foreign_packages.py",
                               self.made, binaries, "aarch64", folder], capture_output=True, text=True)

    @unittest.skipUnless(os.geteuid() == 0, "packages are installed by root")
    def test_packages_of_another_architecture(self):
        """Made with the native binaries, and one that is marked: what counts is what becomes of them."""
        binaries, made = self.root / "binaries", self.root / "made"
        command("dpkg-deb", "--extract", self.package("client", ".deb"), self.root / "native")
        shutil.move(self.root / "native" / "usr", binaries)
        with (binaries / "bin" / "fargpu").open("ab") as file:
            file.write(b"the other one")
        marked = (binaries / "bin" / "fargpu").read_bytes()
        done = self.foreign(binaries, made)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        deb, rpm, archive = (next(made.glob(f"*{ending}")) for ending in (".deb", ".rpm", ".tar.gz"))
        self.assertEqual(deb.name, f"fargpu-client_{self.version}_arm64.deb")
        self.assertEqual(command("dpkg-deb", "--field", deb, "Architecture").strip(), "arm64")
        self.assertEqual(command("dpkg-deb", "--field", deb, "Depends"),
                         command("dpkg-deb", "--field", self.package("client", ".deb"), "Depends"))
        asked = ("rpm", "--query", "--package", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{LICENSE}\n")
        self.assertEqual(command(*asked, rpm),
                         command(*asked, self.package("client", ".rpm")).replace("x86_64", "aarch64"))
        for question in ("--requires", "--list"):
            self.assertEqual(command("rpm", "--query", "--package", question, rpm),
                             command("rpm", "--query", "--package", question, self.package("client", ".rpm")))
        self.assertEqual(archive.name, f"fargpu-client-{self.version}-aarch64.tar.gz")
        command("dpkg-deb", "--extract", deb, self.root / "deb")
        command("rpm", "--root", self.root / "rpm", "--ignorearch", "--install", "--nodeps", rpm)
        command("tar", "-C", self.root, "-xzf", archive)
        for usr in (self.root / "deb" / "usr", self.root / "rpm" / "usr",
                    self.root / f"fargpu-{self.version}-aarch64"):
            self.assertLessEqual(set(IN_PACKAGE["client"]), set(self.files(usr)))
            self.assertEqual((usr / "bin" / "fargpu").read_bytes(), marked)
            self.assertTrue(os.access(usr / "bin" / "fargpu", os.X_OK))
        listed = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(listed), {deb.name, rpm.name, archive.name})

        (binaries / "lib" / "fargpu" / "libfargpu-nccl.so").unlink()
        done = self.foreign(binaries, self.root / "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no lib/fargpu/libfargpu-nccl.so, which the package needs; build it too", done.stderr)

    def test_debug_symbols_are_found_by_build_id(self):
        with tarfile.open(self.package("debug", ".tar.gz")) as tar:
            names = tar.getnames()
        for name in ("bin/fargpu", "bin/fargpud", "bin/fargpu-worker", "lib/libcuda.so.1", "lib/libnvidia-ml.so.1"):
            number = re.search(r"Build ID: (\w+)", command("readelf", "--notes", paths.BUILD / name))[1]
            self.assertEqual(len([one for one in names
                                  if one.endswith(f"/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")]), 1, name)

    def test_the_example_of_a_site_is_one(self):
        command("tar", "-C", self.root, "--strip-components=1", "-xzf", self.package("client", ".tar.gz"))
        command("tar", "-C", self.root, "--strip-components=1", "-xzf", self.package("server", ".tar.gz"))
        site = self.root / "share" / "fargpu" / "example-site"
        done = subprocess.run([site / "make-credentials"], cwd=site, capture_output=True, text=True,
                              env={"PATH": f"{self.root / 'bin'}:/usr/bin:/bin"})
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = run([self.root / "bin" / "fargpud", "--config", site / "fargpud.toml", "--show-config"])
        self.assertEqual((shown.code, shown.err), (0, ""))
        for setting in ("tls_certificate", "tls_key", "token_file"):
            self.assertTrue(Path(re.search(rf'^{setting} = "(.*)"', shown.out, re.M)[1]).exists(), setting)


if __name__ == "__main__":
    unittest.main()
