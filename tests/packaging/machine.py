"""A Debian root that boots with systemd, for tests of packages: an overlay over the root that
scripts/packaging-tools unpacks, in namespaces of its own."""

import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "target/packaging/root"
PATIENCE = 180


def eventually(what, condition, patience=PATIENCE):
    """Waits until the condition returns something true, and returns that."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.1)


class Machine:
    """A booted machine. Its network has only a loopback device. `folder` is mounted read-only at /packages. It begins
    with the files that another one, which was stopped, ended with."""

    def __init__(self, folder, template=None):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="culvert-machine-"))
        self.root = self.place / "root"
        self.log = self.place / "console"
        self.mounted = False
        self.nspawn = None
        self.leader = None
        for name in ("root", "upper", "work"):
            (self.place / name).mkdir()
        # The files above those of the root, the newest first.
        self.below = [template.place / "upper", *template.below] if template else []
        lower = ":".join(map(str, [*self.below, BASE]))
        layers = f"lowerdir={lower},upperdir={self.place}/upper,workdir={self.place}/work"
        try:
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, self.root], check=True)
            self.mounted = True
            command = ["systemd-nspawn", "--quiet", "--register=no", "--directory", self.root, "--private-network"]
            if not os.path.isdir("/run/systemd/system"):
                # Nobody is there to ask for a unit.
                command.append("--keep-unit")
            command += [f"--bind-ro={folder}:/packages", "--console=pipe", "--boot"]
            with open(self.log, "wb") as console:
                self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
            eventually("the machine is booted", self._booted)
        except BaseException:
            self.close()
            raise

    def _leader(self):
        if self.nspawn.poll() is not None:
            raise AssertionError(f"it does not boot:\n{self.log.read_text(errors='replace')}")
        children = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
        return children[-1] if children else None

    def _booted(self):
        # The first child only prepares the machine, and ends when the second one starts.
        self.leader = self._leader()
        if not self.leader:
            return False
        done = self.run("systemctl", "is-system-running", check=False)
        return done.stdout.strip() in ("running", "degraded")

    def enter(self, *command):
        """The command line that runs a command inside."""
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        return ["nsenter", "--target", self.leader, "--all", "--", "env", "-i", path, "LC_ALL=C", *command]

    def run(self, *command, check=True):
        """Runs a command inside, and returns what `subprocess.run` does."""
        done = subprocess.run(self.enter(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if check and done.returncode != 0:
            journal = subprocess.run(
                self.enter("journalctl", "--no-pager", "-n", "60"), capture_output=True, text=True
            ).stdout
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{journal}")
        return done

    def write(self, path, text, mode="644"):
        """Writes a file of root."""
        script = f"umask 077; cat > {path}; chmod {mode} {path}"
        subprocess.run(self.enter("sh", "-c", script), input=text, text=True, check=True)

    def is_active(self, unit):
        return self.run("systemctl", "is-active", unit, check=False).stdout.strip() == "active"

    def stat(self, path):
        """Owner, group and mode of a file, or None."""
        done = self.run("stat", "--format", "%U:%G %a", path, check=False)
        return done.stdout.strip() or None

    def stop(self):
        """Ends all of the machine. Its files stay until `close`."""
        if self.nspawn is not None:
            # The end of its first process ends all of the machine. It outlives systemd-nspawn.
            if self.leader:
                subprocess.run(["kill", "-s", "KILL", self.leader], check=False)
            self.nspawn.terminate()
            try:
                self.nspawn.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
            self.nspawn = None
        if self.mounted:
            subprocess.run(["umount", "--lazy", self.root], check=False)
            self.mounted = False

    def close(self):
        self.stop()
        subprocess.run(["rm", "-rf", self.place], check=False)


def namespace_of(machine):
    """The command line that runs a program of this system in the network of the machine."""
    return ["nsenter", "--target", machine.leader, "--net", "--"]
