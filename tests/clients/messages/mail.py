"""A mail server (aiosmtpd) with three ports: STARTTLS and a password, TLS, and neither.

Writes its ports, and then a line of JSON for each mail, as Python's own parser of mail reads it. Refuses what a name asks
for: recipients `refused@` and `later@`, and mails whose text has `reject-this-mail`.
"""

import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

USER, PASSWORD = b"culvert", b"correct horse"


class Mails:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("refused@"):
            return "550 5.1.1 no such mailbox"
        if address.startswith("later@"):
            return "451 4.7.1 try again"
        envelope.rcpt_tos.append(address)
        return "250 ok"

    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        text = mail.get_body(("plain",)).get_content()
        if "reject-this-mail" in text:
            return "554 5.6.0 no"
        parts = list(mail.iter_attachments())
        found = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "headers": sorted(name.lower() for name in mail.keys()),
            "header_to": [str(one.addr_spec) for one in mail["to"].addresses],
            "subject": mail["subject"],
            "id": mail["message-id"],
            "date": mail["date"].datetime.isoformat(),
            "text": text,
            "attached": [part.get_filename() for part in parts],
            "lines": [json.loads(line) for part in parts for line in part.get_content().splitlines()],
            "defects": [str(defect) for part in mail.walk() for defect in part.defects],
            "user": session.auth_data and session.auth_data.login.decode(),
            "is_tls": server.transport.get_extra_info("ssl_object") is not None,
        }
        print(json.dumps(found), flush=True)
        return "250 ok"


def authenticate(server, session, envelope, mechanism, data):
    is_right = isinstance(data, LoginPassword) and (data.login, data.password) == (USER, PASSWORD)
    return AuthResult(success=is_right, handled=is_right, auth_data=data)


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:3])
    mails = Mails()
    with_password = {"authenticator": authenticate, "auth_required": True}

    def starttls():
        return SMTP(mails, tls_context=context, require_starttls=True, **with_password)

    def tls():
        return SMTP(mails, auth_require_tls=False, **with_password)

    def plain():
        return SMTP(mails)

    loop = asyncio.get_running_loop()
    ports = {}
    for name, factory, over in [("starttls", starttls, None), ("tls", tls, context), ("none", plain, None)]:
        server = await loop.create_server(factory, "127.0.0.1", 0, ssl=over)
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
