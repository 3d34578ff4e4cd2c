"""The Debian and RPM packages: built, installed, started, upgraded under load, removed and purged on a machine
that systemd runs."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from machine import BASE, ROOT, Machine, eventually, namespace_of

BINARY = os.environ["CULVERT_BINARY"]
POLICY = {
    "on_http_request": [{"actions": [{"type": "custom-response", "config": {"status_code": 200, "body": "here"}}]}]
}
SETUP = """
domain = "tunnel.test"
contact = "ops@tunnel.test"
dns_provider = "desec"
dns_secret = "s3cret"
https_port = 8444
http_port = 8080
"""
LOAD = pathlib.Path(__file__).with_name("load.py")


def build(kind, version, out):
    command = [ROOT / "packaging/build", kind, BINARY, "x86_64", version, out]
    environment = os.environ | {"CULVERT_FAST": "1", "SOURCE_DATE_EPOCH": "1767225600"}
    made = subprocess.run(command, env=environment, capture_output=True, text=True)
    if made.returncode != 0:
        raise AssertionError(f"{kind}: {made.stdout}{made.stderr}")
    return pathlib.Path(made.stdout.strip())


class Load:
    """Requests that go on until `finish`."""

    def __init__(self, machine):
        self.process = subprocess.Popen(
            [*namespace_of(machine), sys.executable, LOAD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def more(self):
        """Waits until another hundred requests are answered."""
        before = int(self.line())
        while int(self.line()) < before + 100:
            pass

    def line(self):
        line = self.process.stdout.readline().strip()
        if not line.isdigit():
            raise AssertionError(f"{line}\n{self.process.communicate()[0]}")
        return line

    def finish(self):
        said, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise AssertionError(said)
        return int(said.split()[-1])


class Packages(unittest.TestCase):
    def boot(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        return pathlib.Path(self.folder.name)

    def machine(self, folder):
        machine = Machine(folder)
        self.addCleanup(machine.close)
        return machine

    def call(self, machine, method, path, body=None):
        """One call of the API with the first key, or with the one that `culvert setup` made."""
        script = (
            "import json, sys, urllib.request as u\n"
            "method, path, token, body = sys.argv[1:]\n"
            "q = u.Request('http://127.0.0.1:8420' + path, data=body.encode() or None, method=method)\n"
            "q.add_header('authorization', 'Bearer ' + token)\n"
            "q.add_header('content-type', 'application/json')\n"
            "print(u.urlopen(q, timeout=60).read().decode())\n"
        )
        first = machine.run("cat", "/var/lib/culvert/bootstrap-key", check=False)
        if first.returncode == 0:
            token = first.stdout.strip()
        else:
            profile = machine.run("cat", "/root/.config/culvert/config.toml").stdout
            token = re.search(r'^api_key = "(.*)"$', profile, re.M)[1]
        text = json.dumps(body) if body is not None else ""
        done = subprocess.run(
            [*namespace_of(machine), sys.executable, "-c", script, method, path, token, text],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout or "null")

    def check_running(self, machine):
        """The service is up as its own user, with its sockets held by systemd."""
        for unit in ("culvert.socket", "culvert.service"):
            eventually(f"{unit} is active", lambda: machine.is_active(unit))
        machine.run("culvert", "health")
        pid = self.pid(machine)
        self.assertEqual(machine.stat(f"/proc/{pid}"), "culvert:culvert 555")
        self.assertEqual(machine.stat("/var/lib/culvert"), "culvert:culvert 700")
        self.assertEqual(machine.stat("/etc/culvert/culvert.toml"), "root:culvert 640")
        self.assertEqual(machine.stat("/usr/bin/culvert"), "root:root 755")
        journal = machine.run("journalctl", "--no-pager", "-u", "culvert.service").stdout
        self.assertNotIn("no listener uses", journal)
        # Everything that a package needs for people.
        for path in (
            "/usr/share/man/man1/culvert.1.gz",
            "/usr/share/man/man1/culvert-serve.1.gz",
            "/usr/share/bash-completion/completions/culvert",
        ):
            self.assertIsNotNone(machine.stat(path), path)

    def pid(self, machine, unit="culvert.service"):
        return machine.run("systemctl", "show", "--property", "MainPID", "--value", unit).stdout.strip()

    def upgrade(self, machine, *command):
        """Upgrades a running server under load. No request is lost, and the data stays."""
        made = self.call(
            machine,
            "POST",
            "/endpoints",
            {"url": "http://app.culvert.localhost", "traffic_policy": json.dumps(POLICY)},
        )
        machine.run("sh", "-c", "echo '# mine' >> /etc/culvert/culvert.toml")
        before = self.pid(machine)
        load = Load(machine)
        load.more()
        machine.run(*command)
        eventually("the new server runs", lambda: machine.is_active("culvert.service"))
        load.more()
        answers = load.finish()
        self.assertNotEqual(self.pid(machine), before, "the server was not restarted")
        self.assertEqual(self.call(machine, "GET", f"/endpoints/{made['id']}")["id"], made["id"])
        self.assertIn("# mine", machine.run("cat", "/etc/culvert/culvert.toml").stdout)
        self.check_running(machine)
        print(f"{answers} requests over an upgrade, none lost")

    def check_unit(self, machine):
        """systemd finds nothing wrong with the units, and little to attack."""
        units = ["/usr/lib/systemd/system/culvert.service", "/usr/lib/systemd/system/culvert.socket"]
        done = machine.run("systemd-analyze", "verify", "--man=no", *units)
        self.assertEqual(done.stdout + done.stderr, "")
        done = machine.run("systemd-analyze", "security", "--offline=true", "--threshold=20", units[0])
        exposure = re.search(r"exposure level for culvert.service: ([0-9.]+)", done.stdout)
        print("exposure", exposure[1])

    def check_services(self, machine, folder):
        """One command runs an agent as a service, another one a server; each is removed with one command."""
        token = self.call(machine, "POST", "/credentials", {})["token"]
        (folder / "page").mkdir()
        (folder / "page/index.html").write_text("from the agent\n")
        service = subprocess.Popen(
            [*namespace_of(machine), sys.executable, "-m", "http.server", "9000", "--directory", folder / "page"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(lambda: (service.kill(), service.wait()))
        machine.write("/srv/ca.pem", machine.run("cat", "/var/lib/culvert/ca.pem").stdout)
        machine.write(
            "/srv/agent.yml",
            "version: 3\n"
            "agent:\n"
            f"  authtoken: {token}\n"
            "  connect_url: 127.0.0.1:8441\n"
            "  connect_cas: /srv/ca.pem\n"
            "endpoints:\n"
            "  - name: page\n"
            "    url: http://page.culvert.localhost\n"
            "    upstream: {url: 9000}\n",
            mode="600",
        )
        machine.run("culvert", "service", "install", "--config", "/srv/agent.yml")
        eventually("the agent serves", lambda: self.page(machine) == "from the agent")
        status = machine.run("culvert", "service", "status").stdout.split()
        self.assertEqual(status, ["culvert-agent.service", "active"])
        # The process has no rights, and the token is not in its arguments or environment.
        pid = self.pid(machine, "culvert-agent.service")
        # The range of users that systemd creates for a service.
        self.assertIn(int(machine.run("stat", "--format", "%u", f"/proc/{pid}").stdout), range(61184, 65520))
        for part in ("cmdline", "environ"):
            self.assertNotIn(token, machine.run("cat", f"/proc/{pid}/{part}").stdout)
        # It comes back after a crash.
        machine.run("systemctl", "kill", "--signal", "KILL", "culvert-agent.service")
        eventually("another agent runs", lambda: self.pid(machine, "culvert-agent.service") not in ("0", pid))
        eventually("the agent serves again", lambda: self.page(machine) == "from the agent")
        machine.run("culvert", "service", "uninstall")
        self.assertFalse(machine.is_active("culvert-agent.service"))
        self.assertIsNone(machine.stat("/etc/systemd/system/culvert-agent.service"))
        self.assertEqual(machine.run("culvert", "service", "status", check=False).returncode, 1)

        # The package has a unit of this name.
        refused = machine.run("culvert", "service", "install", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("use `systemctl enable --now culvert.service`", refused.stderr)

    def check_setup(self, machine):
        """One command makes settings, sockets, a key of the operator, and a backup that was restored once."""
        machine.write("/srv/setup.toml", SETUP)
        setup = ("env", "HOME=/root", "culvert", "setup", "--yes", "/srv/setup.toml")
        planned = machine.run(*setup, "--dry-run").stdout
        self.assertIn("CULVERT_ACME__DNS__DESEC__TOKEN=", planned)
        self.assertNotIn("s3cret", planned)
        self.assertIsNone(machine.stat("/etc/culvert/environment"))
        # `doctor` reaches no CA and no name here.
        done = machine.run(*setup, check=False)
        self.assertIn("restored elsewhere, it is intact", done.stdout, done.stderr)
        self.assertIn("`culvert doctor` found problems", done.stderr)
        self.assertEqual(machine.stat("/etc/culvert/environment"), "root:root 600")
        self.assertEqual(machine.stat("/etc/culvert/culvert.toml"), "root:culvert 640")
        self.assertIn("# mine", machine.run("cat", "/etc/culvert/culvert.toml.former-1").stdout)
        self.assertIsNone(machine.stat("/var/lib/culvert/bootstrap-key"))
        self.assertEqual(machine.stat("/root/.config/culvert/config.toml"), "root:root 600")
        keys = machine.run("env", "HOME=/root", "culvert", "api", "api_keys", "list").stdout
        self.assertEqual([key["description"] for key in json.loads(keys)["keys"]], ["Operator, by culvert setup"])
        self.check_running(machine)
        self.assertTrue(machine.is_active("culvert-backup.timer"))
        listening = subprocess.run(
            [*namespace_of(machine), "ss", "-Hltn"], capture_output=True, text=True, check=True
        ).stdout
        self.assertIn("0.0.0.0:8445", listening)
        self.assertNotIn("0.0.0.0:8443", listening)
        # Again, without a first key: the same settings, and another backup.
        done = machine.run(*setup, check=False)
        self.assertIn("the first API key was replaced before", done.stdout, done.stderr)
        self.assertIn("restored elsewhere, it is intact", done.stdout)
        self.assertIsNone(machine.stat("/etc/culvert/culvert.toml.former-2"))
        machine.run("rm", "-r", "/var/lib/culvert-backups")

    def check_downloaded(self, machine):
        """A binary without a package serves as a user that systemd creates."""
        machine.run("sh", "-c", "install /packages/culvert /usr/local/bin/culvert && mkdir -p /etc/culvert")
        machine.write("/etc/culvert/culvert.toml", 'data_dir = "/var/lib/culvert"\n')
        culvert = lambda *command, check=True: machine.run("/usr/local/bin/culvert", *command, check=check)
        # The data stays for the next installation.
        for bots in (0, 1):
            culvert("service", "install", "--config", "/etc/culvert/culvert.toml")
            eventually("the server is healthy", lambda: culvert("health", check=False).returncode == 0)
            self.assertEqual(len(self.call(machine, "GET", "/bot_users")["bot_users"]), bots)
            self.call(machine, "POST", "/bot_users", {"name": f"bot-{bots}"})
            culvert("service", "uninstall", "serve")
            self.assertFalse(machine.is_active("culvert.service"))

    def page(self, machine):
        """The page of the agent through the edge, or None."""
        script = (
            "import urllib.request as u\n"
            "q = u.Request('http://127.0.0.1:8080/', headers={'host': 'page.culvert.localhost'})\n"
            "print(u.urlopen(q, timeout=60).read().decode())\n"
        )
        command = [*namespace_of(machine), sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    def test_deb(self):
        folder = self.boot()
        shutil.copy(BINARY, folder / "culvert")
        old, new = build("deb", "1.0.0", folder), build("deb", "1.0.1-rc.1", folder)
        self.assertEqual(new.name, "culvert_1.0.1~rc.1-1_amd64.deb")
        machine = self.machine(folder)
        machine.run("dpkg", "--install", f"/packages/{old.name}")
        self.check_running(machine)
        self.check_unit(machine)
        self.check_services(machine, folder)
        for unit in ("culvert.socket", "culvert.service"):
            self.assertEqual(machine.run("systemctl", "is-enabled", unit).stdout.strip(), "enabled")
        self.upgrade(machine, "dpkg", "--install", f"/packages/{new.name}")
        status = machine.run("dpkg-query", "--show", "--showformat", "${Status} ${Version}", "culvert").stdout
        self.assertEqual(status, "install ok installed 1.0.1~rc.1-1")
        # Debian's own parser reads the changelog.
        changelog = machine.run("zcat", "/usr/share/doc/culvert/changelog.Debian.gz").stdout
        parsed = subprocess.run(
            ["dpkg-parsechangelog", "-l-", "--show-field", "Version"], input=changelog, capture_output=True, text=True
        )
        self.assertEqual((parsed.stdout, parsed.stderr), ("1.0.1~rc.1-1\n", ""))

        machine.run("systemctl", "reload", "culvert.service")
        journal = lambda: machine.run("journalctl", "--no-pager", "-u", "culvert.service").stdout
        eventually("the settings are reloaded", lambda: "settings reloaded" in journal())

        self.check_setup(machine)
        # What the operator stopped stays stopped over an upgrade.
        machine.run("systemctl", "stop", "culvert.socket", "culvert.service")
        machine.run("dpkg", "--install", f"/packages/{new.name}")
        self.assertFalse(machine.is_active("culvert.service"))
        machine.run("systemctl", "start", "culvert.service")
        self.check_running(machine)

        # A removal keeps settings and data; a purge does not.
        machine.run("dpkg", "--remove", "culvert")
        self.assertFalse(machine.is_active("culvert.socket"))
        self.assertIsNotNone(machine.stat("/var/lib/culvert/master.key"))
        machine.run("dpkg", "--install", f"/packages/{new.name}")
        self.check_running(machine)
        self.assertEqual(len(self.call(machine, "GET", "/endpoints")["endpoints"]), 1)
        machine.run("dpkg", "--purge", "culvert")
        left = machine.run(
            "find", "/etc", "/usr", "/var", "-xdev", "-iname", "*culvert*", "-not", "-path", "/usr/share/culvert*"
        )
        left = [path for path in left.stdout.split() if not path.startswith(("/var/log/", "/var/lib/dpkg/info/"))]
        self.assertEqual(left, [])
        self.check_downloaded(machine)

    def test_rpm(self):
        folder = self.boot()
        old, new = build("rpm", "1.0.0", folder), build("rpm", "1.0.1", folder)
        machine = self.machine(folder)
        # The requirements name packages that this distribution calls otherwise.
        install = ("rpm", "--upgrade", "--nodeps", "--force-debian")
        machine.run(*install, f"/packages/{old.name}")
        machine.run("systemctl", "enable", "--now", "culvert.socket", "culvert.service")
        self.check_running(machine)
        self.upgrade(machine, *install, f"/packages/{new.name}")
        self.assertEqual(machine.run("rpm", "--query", "culvert").stdout.strip(), "culvert-1.0.1-1.x86_64")
        self.assertEqual(machine.run("rpm", "--verify", "--nodeps", "culvert", check=False).stdout.split()[-1:],
                         ["/etc/culvert/culvert.toml"])
        machine.run("rpm", "--erase", "--nodeps", "culvert")
        self.assertFalse(machine.is_active("culvert.socket"))
        self.assertIsNone(machine.stat("/usr/bin/culvert"))
        self.assertIsNotNone(machine.stat("/var/lib/culvert/master.key"))

    def test_the_same_inputs_make_the_same_packages(self):
        folder = self.boot()
        for kind in ("deb", "rpm", "chart"):
            one, two = (build(kind, "1.0.0", folder / part) for part in ("one", "two"))
            self.assertEqual(*(hashlib.sha256(made.read_bytes()).hexdigest() for made in (one, two)), kind)


if __name__ == "__main__":
    unittest.main()
