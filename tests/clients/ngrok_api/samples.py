"""What an object of each collection is made from and changed to, and where the package keeps it.

One row per collection that has both create and update in the package; the suite walks over what the
server lists and picks the row. Certificates and keys are samples made for these tests.
"""

import base64
import itertools
import os

CA_PEM = """\
-----BEGIN CERTIFICATE-----
MIIBjjCCATOgAwIBAgIUfbfgB4Nz2mr4zMYpdIfWeUWTI0UwCgYIKoZIzj0EAwIw
GzEZMBcGA1UEAwwQU2FtcGxlIGF1dGhvcml0eTAgFw0yNjExMjExNDAyNTNaGA8y
MTI2MTAyODE0MDI1M1owGzEZMBcGA1UEAwwQU2FtcGxlIGF1dGhvcml0eTBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABIHAxOaSLtvgjULw6TMC3ix1toG0YQPpSHaN
I9oYq/GZSD0I38P1HkgfsmGOWzD+avYniDgqQXy3TXCt7GmFWhWjUzBRMB0GA1Ud
DgQWBBTQ50XULWKWyfX3dwPSAQ/9FjduUDAfBgNVHSMEGDAWgBTQ50XULWKWyfX3
dwPSAQ/9FjduUDAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQD3
WiS2X2pCIxojsWNtFp5dBxM3PR386QcP/pOpz0rXtwIhANfEgkMG439foef9wBNN
7ewWSwioDM2fThnj74IUeqXq
-----END CERTIFICATE-----
"""

CERTIFICATE_PEM = """\
-----BEGIN CERTIFICATE-----
MIIBrzCCAVagAwIBAgIUPA/hZOYUOr4u7nLsgZPoi2INGjowCgYIKoZIzj0EAwIw
HjEcMBoGA1UEAwwTc2FtcGxlLmV4YW1wbGUudGVzdDAgFw0yNjExMjExNDAyNTNa
GA8yMTI2MTAyODE0MDI1M1owHjEcMBoGA1UEAwwTc2FtcGxlLmV4YW1wbGUudGVz
dDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFE0qIVTl6NsU6aU52AqIKqTP1nV
0qSvwmTRL/N81Yuhx0HvMUAASsuVc/jUJ4O0ge8MDTc9Bz0AOu/k55o7tRajcDBu
MB0GA1UdDgQWBBRH6rDIQhkpe7TlVTBdZfxnWHIGvzAfBgNVHSMEGDAWgBRH6rDI
Qhkpe7TlVTBdZfxnWHIGvzAeBgNVHREEFzAVghNzYW1wbGUuZXhhbXBsZS50ZXN0
MAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDRwAwRAIgSvF850y5iorXa8wbbgqa
+jpMn5qR79oAZpImpD57yqICIG7uh95RP0hY9stU66XBGBnkezEsPGPzp9rD0G7Z
N6Dm
-----END CERTIFICATE-----
"""

PRIVATE_KEY_PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgmit9ZCiTbC8+PKBB
+PKNvIhNCuKaW8tpIagLizZemMChRANCAARRNKiFU5ejbFOmlOdgKiCqkz9Z1dKk
r8Jk0S/zfNWLocdB7zFAAErLlXP41CeDtIHvDA03PQc9ADrv5OeaO7UW
-----END PRIVATE KEY-----
"""

# Name of a collection at the server's root -> attribute of the package's client.
ATTRIBUTES = {
    "app/sessions": "application_sessions",
    "app/users": "application_users",
    "application_sessions": "application_sessions",
    "application_users": "application_users",
    "vault_secrets": "secrets",
}

# Collections that the package does not have.
NOT_IN_THE_PACKAGE = {"alert_rules", "alerts", "audit_holds", "grants", "kubernetes_operators", "users"}

# Collections that are only read, or made by something else than a create of the package.
READ_ONLY = {"application_sessions", "application_users", "tunnel_sessions", "tunnels"}

_number = itertools.count(1)


def name(stem):
    """A name that no other object of this run has."""
    return "%s-%d" % (stem, next(_number))


def ssh_public_key():
    """An Ed25519 public key that no other object has; nobody knows its private half."""
    parts = [b"ssh-ed25519", os.urandom(32)]
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


class Dict:
    """Stands for an object of the package that carries a plain dictionary.

    The package's own `EventTarget` replaces nested dictionaries by objects that do not serialise, so
    callers hand over something like this.
    """

    def __init__(self, **props):
        self._props = props


WORDS = {"description": "made by a test", "metadata": '{"é": 1}'}
OTHER_WORDS = {"description": "changed by a test", "metadata": ""}


def _destination(client):
    return client.event_destinations.create(format="json", target=Dict(debug={"log": True}))


def _ssh_ca(client):
    return client.ssh_certificate_authorities.create(private_key_type="ed25519")


def _certified(client):
    return dict(
        ssh_certificate_authority_id=_ssh_ca(client).id,
        public_key=ssh_public_key(),
        principals=["sample.example.test"],
        valid_after="",
        valid_until="",
        **WORDS,
    )


# Attribute -> (arguments of create, arguments of update), each made with a client.
# There is one restriction of each type.
RESTRICTION_TYPES = itertools.cycle(["agent", "dashboard"])

SAMPLES = {
    "agent_ingresses": (
        lambda c: dict(domain=name("ingress") + ".example.test", **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "api_keys": (lambda c: dict(**WORDS), lambda c: dict(**OTHER_WORDS)),
    "bot_users": (
        lambda c: dict(name=name("bot"), active=False),
        lambda c: dict(name=name("other-bot"), active=True),
    ),
    "certificate_authorities": (
        lambda c: dict(ca_pem=CA_PEM, **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "credentials": (
        lambda c: dict(acl=["bind:*.example.test"], **WORDS),
        lambda c: dict(acl=["bind:other.example.test"], **OTHER_WORDS),
    ),
    "endpoints": (None, lambda c: dict(pooling_enabled=True, **OTHER_WORDS)),
    "event_destinations": (
        lambda c: dict(format="JSON", target=Dict(debug={"log": True}), **WORDS),
        lambda c: dict(format="json", target=Dict(debug={"log": True, "callback_url": "https://example.test/"}), **OTHER_WORDS),
    ),
    "event_subscriptions": (
        lambda c: dict(
            sources=[Dict(type="api_key_created.v0"), Dict(type="tcp_connection_closed.v0")],
            destination_ids=[_destination(c).id],
            **WORDS,
        ),
        lambda c: dict(destination_ids=[_destination(c).id], **OTHER_WORDS),
    ),
    "ip_policies": (lambda c: dict(**WORDS), lambda c: dict(**OTHER_WORDS)),
    "ip_policy_rules": (
        lambda c: dict(
            cidr="192.0.2.0/24", ip_policy_id=c.ip_policies.create().id, action="allow", **WORDS
        ),
        lambda c: dict(cidr="2001:db8::/32", **OTHER_WORDS),
    ),
    "ip_restrictions": (
        lambda c: dict(type=next(RESTRICTION_TYPES), ip_policy_ids=[c.ip_policies.create().id], **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "reserved_addrs": (lambda c: dict(**WORDS), lambda c: dict(**OTHER_WORDS)),
    "reserved_domains": (
        lambda c: dict(domain=name("domain") + ".example.test", **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "secrets": (
        lambda c: dict(
            name=name("secret"), value="hidden", vault_id=c.vaults.create(name=name("of")).id, **WORDS
        ),
        lambda c: dict(name=name("other-secret"), value="hidden too", **OTHER_WORDS),
    ),
    "service_users": (
        lambda c: dict(name=name("service"), active=False),
        lambda c: dict(name=name("other-service"), active=True),
    ),
    "ssh_certificate_authorities": (
        lambda c: dict(private_key_type="ed25519", **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "ssh_credentials": (
        lambda c: dict(public_key=ssh_public_key(), acl=["bind:*.example.test"], **WORDS),
        lambda c: dict(acl=["bind:other.example.test"], **OTHER_WORDS),
    ),
    "ssh_host_certificates": (lambda c: _certified(c), lambda c: dict(**OTHER_WORDS)),
    "ssh_user_certificates": (lambda c: _certified(c), lambda c: dict(**OTHER_WORDS)),
    "tls_certificates": (
        lambda c: dict(certificate_pem=CERTIFICATE_PEM, private_key_pem=PRIVATE_KEY_PEM, **WORDS),
        lambda c: dict(**OTHER_WORDS),
    ),
    "vaults": (
        lambda c: dict(name=name("vault"), **WORDS),
        lambda c: dict(name=name("other-vault"), **OTHER_WORDS),
    ),
}
