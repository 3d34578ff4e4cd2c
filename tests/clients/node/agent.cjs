// The published JavaScript agent, unmodified, with one endpoint: prints its URL, or the code of a refusal,
// and ends when standard input does.
//
// CULVERT_AGENT_PACKAGE   main file of the package
// CULVERT_AGENTS          host:port of the ingress of agents
// CULVERT_CA              file with the authority of its certificate
// TOKEN                   of a tunnel credential
// PROTO                   http or tcp
// APP_PROTOCOL            of the service of an http endpoint; may be empty
// NAME                    domain of an http endpoint
// UPSTREAM                host:port of the service

const fs = require("node:fs");
const { CULVERT_AGENT_PACKAGE, CULVERT_AGENTS, CULVERT_CA, TOKEN, PROTO, APP_PROTOCOL, NAME, UPSTREAM } = process.env;
const ngrok = require(CULVERT_AGENT_PACKAGE);

async function run() {
  const builder = new ngrok.SessionBuilder().serverAddr(CULVERT_AGENTS).caCert(new Uint8Array(fs.readFileSync(CULVERT_CA)));
  const session = await builder.authtoken(TOKEN).metadata("of the test").connect();
  const endpoint = PROTO === "http" ? session.httpEndpoint().scheme("http").domain(NAME) : session.tcpEndpoint();
  if (APP_PROTOCOL) endpoint.appProtocol(APP_PROTOCOL);
  const listener = await endpoint.listenAndForward(`${PROTO}://${UPSTREAM}`);
  console.log(listener.url());
  await new Promise((resolve) => process.stdin.on("end", resolve).resume());
  await listener.close();
  await session.close();
}

run()
  .catch((error) => console.log("refused", error.errorCode ?? String(error.message).match(/ERR_NGROK_\d+/)?.[0]))
  // The library keeps threads of its own.
  .finally(() => process.exit());
