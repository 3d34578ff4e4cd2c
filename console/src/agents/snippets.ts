interface Wanted {
  token: string | undefined;
  port: string;
  kind: string;
  server: string;
  /** The port of the server for SSH. */
  sshPort: string;
  /** Where the console is. */
  origin: string;
  /** The SHA-256 of the installation's CA certificate, where its own certificate may protect the console. */
  caHash: string | undefined;
}

interface Snippet {
  id: string;
  label: string;
  text: string;
  command: string;
}

/** The commands that connect an agent, for each kind of agent. */
export function commandsFor({
  token,
  port,
  kind,
  server,
  sshPort,
  origin,
  caHash,
}: Wanted): Snippet[] {
  const key = token ?? '<token>';
  const host = server.replace(/:\d+$/, '');
  const listener = `${kind === 'tls' ? 'tls' : kind}_endpoint`;
  const target =
    kind === 'http' ? `http://127.0.0.1:${port}` : `tcp://127.0.0.1:${port}`;
  const bound = kind === 'http' || kind === 'tls' ? '443' : '0';
  // This machine does not trust that CA yet: the hash takes the place of its certificate.
  const ca = caHash
    ? `curl -kfsSo ca.pem ${origin}/console/ca.pem && echo "${caHash}  ca.pem" | sha256sum -c`
    : `curl -fsSo ca.pem ${origin}/console/ca.pem`;
  return [
    {
      id: 'culvert',
      label: 'culvert',
      text: 'The same binary as the server. The first line gets the certificate authority of this installation.',
      command: `${ca}\nCULVERT_AUTHTOKEN=${key} culvert ${kind} ${port} --server ${server} --ca ca.pem`,
    },
    {
      id: 'ssh',
      label: 'ssh',
      text: 'No agent at all: a stock OpenSSH client. Register its public key first, with the first line.',
      command: `culvert api ssh_credentials create --public-key "$(cat ~/.ssh/id_ed25519.pub)"\nssh -p ${sshPort} -R ${bound}:localhost:${port} v2@${host} ${kind}`,
    },
    {
      id: 'python',
      label: 'Python',
      text: 'The published library, inside your program.',
      command: `import ngrok\n\nsession = await (ngrok.SessionBuilder()\n    .server_addr("${server}")\n    .ca_cert(bytearray(open("ca.pem", "rb").read()))\n    .authtoken("${key}").connect())\nlistener = await session.${listener}().listen_and_forward("${target}")`,
    },
    {
      id: 'javascript',
      label: 'JavaScript',
      text: 'The published library, inside your program.',
      command: `const ngrok = require('@ngrok/ngrok');\nconst fs = require('fs');\n\nconst builder = new ngrok.SessionBuilder();\nbuilder.serverAddr('${server}').caCert(fs.readFileSync('ca.pem')).authtoken('${key}');\nconst session = await builder.connect();\nconst listener = await session.${kind}Endpoint().listenAndForward('${target}');`,
    },
  ];
}
