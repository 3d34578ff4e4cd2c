"""The guide for containers, run as a reader pastes it: `docker` is Podman, which needs no daemon, and the reader has
downloaded the image of a release. All that it starts and mounts ends with its namespaces."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from machine import ROOT

# Its state is in the folder of the test. Podman 4 knows no mixed hierarchy of control groups, so this one sees only the
# second version, and sets no limits.
PREPARE = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
for place in /run /dev/shm /var/lib/cni; do [ ! -d $place ] || mount -t tmpfs tmpfs $place; done
ip link set lo up
exec "$@"
"""
DOCKER = '#!/bin/sh\nexec podman --root "$HOME/.podman" --runroot /run/podman --cgroup-manager cgroupfs "$@"\n'
SETTINGS = '[containers]\ncgroups = "disabled"\n[engine]\nevents_logger = "file"\n'


class Container(unittest.TestCase):
    def read(self, guide):
        """Runs a guide, and prints the numbers of its blocks."""
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder)
            build = [ROOT / "packaging/build", "image", os.environ["CULVERT_BINARY"], "x86_64", "1.0.0", home]
            subprocess.run(build, env=os.environ | {"SOURCE_DATE_EPOCH": "1767225600"}, check=True, capture_output=True)
            (home / ".bin").mkdir()
            (home / ".bin/docker").write_text(DOCKER)
            (home / ".bin/docker").chmod(0o755)
            (home / ".settings").write_text(SETTINGS)
            enter = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", PREPARE, "sh"]
            reader = {"PATH": f"{home}/.bin:{os.environ['PATH']}", "HOME": folder}
            guides = [ROOT / "tests/docs/run.py", ROOT / "docs/how-to" / guide]
            try:
                done = subprocess.run(
                    [*enter, "env", f"CONTAINERS_CONF={home}/.settings", "python3", "-B", *guides],
                    env=reader,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                )
            finally:
                # Layers of images keep the rights that they have in the container.
                shutil.rmtree(home / ".podman", ignore_errors=True)
        self.assertEqual(done.returncode, 0, f"{guide}:\n{done.stdout}{done.stderr}")
        counts = json.loads(done.stdout)
        self.assertEqual(counts["skipped"], 0)
        print(json.dumps({"guide": guide} | counts), flush=True)

    def test_container(self):
        self.read("container.md")


if __name__ == "__main__":
    unittest.main()
