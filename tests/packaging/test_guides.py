"""The README, the tutorial, the guides and the explanations that have something to paste into a terminal, run as a reader
pastes it: a user with sudo on a machine where the package is installed, with the programs of `tests/docs/reader`. Each
document has a machine of its own. `CULVERT_GUIDES`, such as `audit.md ssh.md`, selects some of them."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from internet import Internet
from machine import ROOT, Machine, eventually
from test_packages import build

# Where the names of the guides lead without the name server.
HOSTS = "127.0.0.1 localhost tunnel.example.com connect.example.com app.example.com tcp.example.com\n::1 localhost\n"
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
# The reader has only downloaded the package.
WITHOUT_PACKAGE = {"install.md"}
WITH_INTERNET = {"production.md", "setup.md"}
# `test_container` runs it with the image.
ELSEWHERE = {"container.md"}
# They wait longest, so they begin first.
FIRST = ("audit.md", "production.md", "setup.md")
# Machines that run concurrently. Each starts servers.
AT_ONCE = 3


def documents():
    """The documents with a block for the terminal."""
    found = [ROOT / "README.md"]
    for folder in ("tutorial", "how-to", "explanation"):
        found += (ROOT / "docs" / folder).glob("*.md")
    wanted = os.environ.get("CULVERT_GUIDES", "").split()
    found = [it for it in found if it.name not in ELSEWHERE and (not wanted or it.name in wanted)]
    found = [it for it in found if re.search(r"^ *```sh$", it.read_text(encoding="utf-8"), re.M)]
    return sorted(found, key=lambda it: (it.name not in FIRST, it.name))


class Guides(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        # Readers are not root.
        cls.folder.chmod(0o755)
        cls.package = build("deb", "1.0.0", cls.folder)
        for name in ("run.py", "reader"):
            shutil.copy(ROOT / "tests/docs" / name, cls.folder)
        cls.sign()
        cls.empty = cls.prepare(None)
        cls.installed = cls.prepare(cls.empty, "dpkg", "--install", f"/packages/{cls.package.name}")

    @classmethod
    def prepare(cls, template, *command):
        """A machine with a reader, on which a command ran. The machines of the documents begin as it ended."""
        machine = Machine(cls.folder, template)
        cls.addClassCleanup(machine.close)
        if not template:
            machine.run("useradd", "--create-home", "--shell", "/bin/bash", "reader")
            machine.write("/etc/sudoers.d/reader", "reader ALL=(ALL) NOPASSWD: ALL\n", mode="440")
        if command:
            machine.run(*command)
            eventually("the server runs", lambda: machine.is_active("culvert.service"))
            machine.run("systemctl", "stop", "culvert.socket", "culvert.service")
        machine.stop()
        return machine

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

    def read(self, document):
        """Runs a document. Returns the numbers of its blocks, or what was printed before the failure."""
        name = document.name
        shutil.copy(document, self.folder)
        machine, internet = Machine(self.folder, self.empty if name in WITHOUT_PACKAGE else self.installed), None
        try:
            own = machine.run("uname", "--nodename").stdout.strip()
            if name in WITH_INTERNET:
                internet = Internet(machine)
            machine.write("/etc/hosts", f"127.0.1.1 {own}\n" + ("127.0.0.1 localhost\n" if internet else HOSTS))
            if name in WITHOUT_PACKAGE:
                # The reader has downloaded it, with what a release has beside it.
                names = (self.package.name, "SHA256SUMS", "SHA256SUMS.minisig", "culvert.pub")
                machine.run("install", "-o", "reader", *(f"/packages/{name}" for name in names), "/home/reader/")
            reader = machine.enter("setpriv", "--reuid", "reader", "--regid", "reader", "--init-groups", "env", "-i",
                                   PATH, "HOME=/home/reader", "USER=reader", "python3", "-B", "/packages/run.py",
                                   f"/packages/{name}")
            done = subprocess.run(reader, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 0:
                return json.loads(done.stdout), None
            journal = machine.run("journalctl", "--no-pager", "-b", "-n", "20", "-u", "culvert.service").stdout
            return None, f"{document}:\n{done.stdout}{done.stderr}\n{journal}"
        finally:
            if internet:
                internet.close()
            machine.close()

    def test_the_documents_work_on_a_machine_with_the_package(self):
        failures = []
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            started = {pool.submit(self.read, document): document for document in documents()}
            for one in concurrent.futures.as_completed(started):
                counts, failure = one.result()
                if failure:
                    failures.append(failure)
                else:
                    print(json.dumps({"document": started[one].name} | counts), flush=True)
        if failures:
            self.fail("\n".join(failures))


if __name__ == "__main__":
    unittest.main()
