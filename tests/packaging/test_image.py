"""The container image: built without a registry, of one layer, for a user without rights, and it runs with a
read-only root."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from machine import ROOT, eventually

BINARY = os.environ["CULVERT_BINARY"]
RUN = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t tmpfs -o mode=0700,uid=65532,gid=65532 data "$1/var/lib/culvert"
mkdir -p "$1/proc" "$1/dev"
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount -o remount,bind,ro "$1"
ip link set lo up
exec chroot --userspec=65532:65532 --groups= "$@"
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        place = pathlib.Path(cls.folder.name)
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1767225600"}
        build = (ROOT / "packaging/build", "image", BINARY, "x86_64", "1.0.0")
        cls.made = run(*build, place / "one", env=environment).strip()
        cls.again = run(*build, place / "two", env=environment).strip()
        run("skopeo", "copy", "--quiet", f"docker-archive:{cls.made}", f"oci:{place}/oci:culvert")
        run("umoci", "unpack", "--image", f"{place}/oci:culvert", place / "bundle")
        cls.config = json.loads(run("skopeo", "inspect", "--config", f"oci:{place}/oci:culvert"))
        cls.docker = json.loads(run("skopeo", "inspect", "--config", "--raw", f"docker-archive:{cls.made}"))
        cls.root = place / "bundle/rootfs"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_it_is_one_layer_for_a_user_without_rights(self):
        self.assertEqual(len(self.config["rootfs"]["diff_ids"]), 1)
        config = self.config["config"]
        self.assertEqual(config["User"], "65532:65532")
        self.assertEqual(config["Entrypoint"], ["/usr/bin/culvert"])
        self.assertEqual(config["Cmd"], ["serve"])
        self.assertEqual(config["Labels"]["org.opencontainers.image.version"], "1.0.0")
        self.assertEqual(list(config["Volumes"]), ["/var/lib/culvert"])
        self.assertEqual(self.docker["config"]["Healthcheck"]["Test"], ["CMD", "/usr/bin/culvert", "health"])
        data = (self.root / "var/lib/culvert").stat()
        self.assertEqual((data.st_uid, data.st_gid, data.st_mode & 0o777), (65532, 65532, 0o700))

    def test_it_contains_only_the_binary_and_certificates(self):
        files = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        libraries = {file for file in files if re.search(r"\.so(\.|$)", file)}
        if libraries:
            # This binary was built for the test and needs them; that of a release is static.
            self.assertIn("NEEDED", run("readelf", "--dynamic", BINARY))
        self.assertEqual(
            files - libraries,
            {"etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "usr/bin/culvert"},
        )
        for file in files:
            found = (self.root / file).stat()
            self.assertEqual((found.st_uid, found.st_mode & 0o022), (0, 0), file)

    def test_the_same_inputs_make_the_same_image(self):
        self.assertEqual(digest(self.made), digest(self.again))

    def test_it_runs_and_is_healthy(self):
        environment = dict(line.split("=", 1) for line in self.config["config"]["Env"])
        enter = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", RUN, "sh", self.root]
        server = subprocess.Popen(
            [*enter, "/usr/bin/culvert", "serve"],
            env=environment | {"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.assertIn("culvert ready", server.stdout.readline())
            child = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0]
            inside = ["nsenter", "--target", child, "--net", "--mount", "--root", "--wd=/",
                      "--setuid", "65532", "--setgid", "65532", "--"]
            health = [*inside, "/usr/bin/culvert", "health"]
            eventually("it is healthy", lambda: subprocess.run(health, env=environment, capture_output=True).returncode == 0)
            status = pathlib.Path(f"/proc/{child}/status").read_text()
            self.assertRegex(status, r"Uid:\t65532\t65532")
            self.assertRegex(status, r"CapEff:\t0000000000000000")
            stopped = environment | {"CULVERT_API__ADDR": "127.0.0.1:9"}
            failed = subprocess.run(health, env=stopped, capture_output=True, text=True)
            self.assertEqual((failed.returncode, failed.stdout), (1, ""))
            self.assertIn("no connection to 127.0.0.1:9", failed.stderr)
        finally:
            # The first process of the namespace ends with its server.
            for child in pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
                subprocess.run(["kill", "-s", "KILL", child], check=False)
            server.wait()

    def test_compose_names_settings_and_the_ports_of_the_image(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is missing; scripts/packaging-tools installs it")
        compose = yaml.safe_load((ROOT / "packaging/image/compose.yaml").read_text())
        culvert = compose["services"]["culvert"]
        exposed = {port.split("/")[0] for port in self.config["config"]["ExposedPorts"]}
        self.assertLessEqual({port.rsplit(":", 1)[1] for port in culvert["ports"]}, exposed)
        self.assertTrue(culvert["read_only"])
        environment = {
            name: re.sub(r"\$\{\w+(:-([^}]*)|:\?[^}]*)?\}", lambda found: found[2] or "0a", value)
            for name, value in culvert["environment"].items()
        }
        shown = json.loads(run(BINARY, "config", "show", env=environment | {"PATH": os.environ["PATH"]}, cwd="/"))
        self.assertEqual(shown["event_log"], "nats://nats:4222")
        self.assertEqual(shown["database_url"], "postgres://culvert:secret@postgres/culvert")
        self.assertEqual(shown["edge"]["domain"], "culvert.localhost")


if __name__ == "__main__":
    unittest.main()
