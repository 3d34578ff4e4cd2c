"""What a machine of the guides reaches on the Internet: a name server with the zone of the guides, which takes updates
with their key, and the public certificate authority that the guides name, which the machine trusts. It is a network
namespace of its own with an address for each; nothing leaves it."""

import http.client
import pathlib
import ssl
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from machine import eventually

MACHINE, GATEWAY = "203.0.113.7", "203.0.113.1"
NAME_SERVER = "10.0.0.53"
# A public address: the server connects to no other one unless its settings allow it.
AUTHORITY, AUTHORITY_HOST = "9.9.9.9", "acme-v02.api.letsencrypt.org"
KEY = "c2VjcmV0IG9mIHRoZSB0ZXN0cyBmb3IgdXBkYXRlcw=="

NAMED = """
options { directory "%(place)s"; pid-file none; session-keyfile "%(place)s/session"; listen-on { %(server)s; };
  listen-on-v6 { none; }; recursion no; dnssec-validation no; };
controls { };
key culvert { algorithm hmac-sha256; secret "%(key)s"; };
zone "tunnel.example.com" { type primary; file "tunnel"; update-policy { grant culvert zonesub TXT; }; };
zone "%(authority_host)s" { type primary; file "authority"; };
"""
ZONE = """$ORIGIN %s.
$TTL 5
@ SOA ns ops 1 60 60 60 5
@ NS ns
@ A %s
* A %s
ns A %s
"""
PEBBLE = """{"pebble": {"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
 "certificate": "%(place)s/authority.pem", "privateKey": "%(place)s/authority.key", "httpPort": 80, "tlsPort": 443}}
"""


class Internet:
    """The namespace and its servers, connected to a machine."""

    def __init__(self, machine):
        self.machine, self.processes = machine, []
        self.place = tempfile.TemporaryDirectory(prefix="culvert-internet-")
        try:
            self._start(pathlib.Path(self.place.name))
        except BaseException:
            self.close()
            raise

    def _start(self, place):
        # It only holds the namespace.
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.processes.append(holder)
        own = pathlib.Path("/proc/self/ns/net").readlink()
        there = pathlib.Path(f"/proc/{holder.pid}/ns/net")
        eventually("the namespace is made", lambda: there.readlink() != own)
        self.inside = ["nsenter", "--target", str(holder.pid), "--net", "--"]
        machine = ["nsenter", "--target", self.machine.leader, "--net", "--"]
        for command in (
            [*self.inside, "ip", "link", "add", "machine", "type", "veth", "peer", "name", "eth0", "netns",
             self.machine.leader],
            [*self.inside, "ip", "link", "set", "lo", "up"],
            [*self.inside, "ip", "link", "set", "machine", "up"],
            [*self.inside, "ip", "address", "add", f"{GATEWAY}/24", "dev", "machine"],
            [*self.inside, "ip", "address", "add", f"{NAME_SERVER}/32", "dev", "lo"],
            [*self.inside, "ip", "address", "add", f"{AUTHORITY}/32", "dev", "lo"],
            [*machine, "ip", "link", "set", "eth0", "up"],
            [*machine, "ip", "address", "add", f"{MACHINE}/24", "dev", "eth0"],
            [*machine, "ip", "route", "add", "default", "via", GATEWAY],
        ):
            subprocess.run(command, check=True)

        names = {"place": place, "server": NAME_SERVER, "key": KEY, "authority_host": AUTHORITY_HOST}
        (place / "named.conf").write_text(NAMED % names)
        (place / "tunnel").write_text(ZONE % ("tunnel.example.com", MACHINE, MACHINE, NAME_SERVER))
        (place / "authority").write_text(ZONE % (AUTHORITY_HOST, AUTHORITY, AUTHORITY, NAME_SERVER))
        self._run(place, "running", "/usr/sbin/named", "-g", "-c", place / "named.conf")

        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
             "-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:FALSE",
             "-addext", f"subjectAltName=DNS:{AUTHORITY_HOST},IP:127.0.0.1",
             "-keyout", place / "authority.key", "-out", place / "authority.pem"],
            check=True, capture_output=True,
        )
        (place / "pebble.json").write_text(PEBBLE % names)
        self._run(place, "Listening on", "env", "PEBBLE_VA_NOSLEEP=1", "pebble", "-config", place / "pebble.json",
                  "-dnsserver", f"{NAME_SERVER}:53")
        self._run(place, "ready", sys.executable, __file__, place)
        root = eventually("the authority has a root", lambda: subprocess.run(
            [*self.inside, "curl", "--silent", "--cacert", place / "authority.pem", "https://127.0.0.1:15000/roots/0"],
            capture_output=True, text=True).stdout)

        self.machine.write("/etc/resolv.conf", f"nameserver {NAME_SERVER}\n")
        for name, pem in (("authority", (place / "authority.pem").read_text()), ("root", root)):
            self.machine.write(f"/usr/local/share/ca-certificates/{name}.crt", pem)
        self.machine.run("update-ca-certificates")

    def _run(self, place, is_up, *command):
        """Starts a server, and waits until its output says that it is up."""
        log = place / f"{len(self.processes)}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen([*self.inside, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.processes.append(process)

        def condition():
            said = log.read_text(errors="replace")
            if process.poll() is not None:
                raise AssertionError(f"{command}:\n{said}")
            return is_up in said

        eventually(f"{command[0]} is up", condition)

    def close(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.place.cleanup()


def serve(place):
    """Forwards requests to Pebble at the address, and under the path of the directory, that the guides name."""
    trusted = ssl.create_default_context(cafile=f"{place}/authority.pem")

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            length = int(self.headers.get("content-length", 0))
            path = "/dir" if self.path == "/directory" else self.path
            inner = http.client.HTTPSConnection("127.0.0.1", 14000, context=trusted)
            inner.request(self.command, path, self.rfile.read(length) or None, dict(self.headers))
            answer = inner.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = forward

    server = ThreadingHTTPServer((AUTHORITY, 443), Forward)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{place}/authority.pem", f"{place}/authority.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1])
