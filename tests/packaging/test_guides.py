"""The guides for an installed package, run as a reader pastes them on an empty machine: a user with sudo who has the
package, and the programs that the guides say. Each guide has a machine of its own."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from internet import Internet
from machine import ROOT, Machine
from test_packages import build

# Where the names of the guides lead without the name server.
HOSTS = "127.0.0.1 localhost tunnel.example.com connect.example.com app.example.com tcp.example.com\n::1 localhost\n"
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"


class Guides(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        # Readers are not root.
        cls.folder.chmod(0o755)
        cls.package = build("deb", "1.0.0", cls.folder)
        shutil.copy(ROOT / "tests/docs/run.py", cls.folder)
        cls.sign()

    @classmethod
    def sign(cls):
        """Makes the checksums of a release and their signature, as `scripts/release` does. Its key is of this test."""
        with open(cls.folder / "SHA256SUMS", "w", encoding="utf-8") as sums:
            # Another file of the release, which this reader did not download.
            print("0" * 64 + "  culvert-1.0.0-chart.tgz", file=sums)
            sums.flush()
            subprocess.run(["sha256sum", cls.package.name], cwd=cls.folder, stdout=sums, check=True)
        with tempfile.TemporaryDirectory() as secret:
            key = f"{secret}/culvert.key"
            for command in (["-G", "-W", "-p", "culvert.pub", "-s", key], ["-S", "-s", key, "-m", "SHA256SUMS"]):
                subprocess.run(["minisign", *command], cwd=cls.folder, input=b"", check=True, capture_output=True)

    def read(self, guide, has_package=True, has_internet=False):
        """Runs a guide, and prints the numbers of its blocks."""
        shutil.copy(ROOT / "docs/how-to" / guide, self.folder)
        machine = Machine(self.folder)
        self.addCleanup(machine.close)
        machine.run("useradd", "--create-home", "--shell", "/bin/bash", "reader")
        machine.write("/etc/sudoers.d/reader", "reader ALL=(ALL) NOPASSWD: ALL\n", mode="440")
        own = machine.run("uname", "--nodename").stdout.strip()
        if has_internet:
            internet = Internet(machine)
            self.addCleanup(internet.close)
        machine.write("/etc/hosts", f"127.0.1.1 {own}\n" + ("127.0.0.1 localhost\n" if has_internet else HOSTS))
        if has_package:
            machine.run("dpkg", "--install", f"/packages/{self.package.name}")
        else:
            # The reader has downloaded it, with what a release has beside it.
            names = (self.package.name, "SHA256SUMS", "SHA256SUMS.minisig", "culvert.pub")
            machine.run("install", "-o", "reader", *(f"/packages/{name}" for name in names), "/home/reader/")
        reader = machine.enter("setpriv", "--reuid", "reader", "--regid", "reader", "--init-groups", "env", "-i", PATH,
                               "HOME=/home/reader", "USER=reader", "python3", "-B", "/packages/run.py",
                               f"/packages/{guide}")
        done = subprocess.run(reader, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            journal = machine.run("journalctl", "--no-pager", "-n", "40", "-u", "culvert.service").stdout
            self.fail(f"{guide}:\n{done.stdout}{done.stderr}\n{journal}")
        counts = json.loads(done.stdout)
        print(json.dumps({"guide": guide} | counts), flush=True)

    def test_install(self):
        self.read("install.md", has_package=False)

    def test_agent(self):
        self.read("agent.md")

    def test_backup(self):
        self.read("backup.md")

    def test_webhooks(self):
        self.read("webhooks.md")

    def test_setup(self):
        self.read("setup.md", has_internet=True)

    def test_production(self):
        self.read("production.md", has_internet=True)


if __name__ == "__main__":
    unittest.main()
