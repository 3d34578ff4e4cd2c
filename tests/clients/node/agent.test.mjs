// The published JavaScript agent, unmodified, against a culvert that is given in the environment:
//
// CULVERT_API_URL, CULVERT_API_KEY   the management API
// CULVERT_AGENTS                     host:port of the ingress of agents
// CULVERT_CA                         file with the authority of its certificate
// CULVERT_HTTP                       host:port of the edge, plain HTTP
// CULVERT_AGENT_PACKAGE              main file of the package

import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import net from "node:net";
import { after, test } from "node:test";

const env = process.env;
const ngrok = createRequire(import.meta.url)(env.CULVERT_AGENT_PACKAGE);
const HOST = "javascript.culvert.localhost";
const [EDGE_HOST, EDGE_PORT] = env.CULVERT_HTTP.split(":");
const CODE = /ERR_NGROK_\d+/;

const pattern = (length) => Buffer.from(Array.from({ length }, (_, at) => (at * 31 + Math.floor(at / 977)) & 255));
const sum = (bytes) => bytes.reduce((sum, byte) => sum + byte, 0);

async function api(method, path, body) {
  const headers = { authorization: `Bearer ${env.CULVERT_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(env.CULVERT_API_URL + path, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
}

const credential = async (acl = []) => (await api("POST", "/credentials", { acl })).token;

function ask(method, path, body) {
  return new Promise((resolve, reject) => {
    const headers = { host: HOST, ...(body && { "content-length": body.length }) };
    const options = { host: EDGE_HOST, port: EDGE_PORT, method, path, headers, agent: false };
    const request = http.request(options, (answer) => {
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("end", () => resolve([answer.statusCode, Buffer.concat(pieces)]));
      answer.on("error", reject);
    });
    request.on("error", reject);
    request.end(body);
  });
}

const listening = (server) => new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server.address().port)));

// GET answers as many bytes as its path says, POST the length and sum of what came.
const service = http.createServer((request, answer) => {
  if (request.method === "GET") return answer.end(pattern(Number(request.url.slice(1))));
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const body = Buffer.concat(pieces);
    answer.end(JSON.stringify([body.length, sum(body)]));
  });
});
const servicePort = await listening(service);
const echo = net.createServer((socket) => socket.on("error", () => {}).pipe(socket));
const echoPort = await listening(echo);

// A way to the ingress that can be cut.
const travelled = new Set();
const road = net.createServer((near) => {
  const [host, port] = env.CULVERT_AGENTS.split(":");
  const far = net.connect(Number(port), host);
  for (const [one, other] of [[near, far], [far, near]]) {
    travelled.add(one);
    one.on("error", () => other.destroy());
    one.on("close", () => other.destroy());
    one.pipe(other);
  }
});
const roadPort = await listening(road);

after(() => {
  for (const server of [service, echo, road]) server.close();
  for (const socket of travelled) socket.destroy();
  service.closeAllConnections();
  // The library keeps threads of its own.
  setImmediate(() => process.exit());
});

async function connect(token, address = env.CULVERT_AGENTS) {
  const builder = new ngrok.SessionBuilder().serverAddr(address).caCert(new Uint8Array(fs.readFileSync(env.CULVERT_CA)));
  if (token) builder.authtoken(token);
  return builder.connect();
}

async function until(what, condition) {
  for (let turn = 0; turn < 600; turn += 1) {
    if (await condition().catch(() => false)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.fail(`waited in vain: ${what}`);
}

test("http, a cut and a clean end", async () => {
  const session = await connect(await credential(), `localhost:${roadPort}`);
  const endpoint = session.httpEndpoint().scheme("http").domain(HOST);
  const listener = await endpoint.listenAndForward(`http://127.0.0.1:${servicePort}`);
  assert.equal(listener.url(), `http://${HOST}`);
  const down = await ask("GET", "/5000000");
  assert.equal(down[0], 200);
  assert.ok(down[1].equals(pattern(5_000_000)));
  const body = pattern(4_000_000);
  const up = await ask("POST", "/", body);
  assert.deepEqual([up[0], JSON.parse(up[1])], [200, [body.length, sum(body)]]);
  const answers = await Promise.all(Array.from({ length: 40 }, () => ask("GET", "/20000")));
  assert.ok(answers.every(([status, bytes]) => status === 200 && bytes.equals(pattern(20_000))));
  const before = await api("GET", "/tunnel_sessions");
  for (const socket of travelled) socket.destroy();
  await until("the agent is back", async () => (await ask("GET", "/10"))[0] === 200);
  assert.equal(listener.url(), `http://${HOST}`);
  assert.deepEqual(await api("GET", "/tunnel_sessions"), before);
  await listener.close();
  await until("the endpoint is gone", async () => (await ask("GET", "/1"))[0] === 404);
  await session.close();
});

test("tcp", async () => {
  const session = await connect(await credential());
  const listener = await session.tcpEndpoint().listenAndForward(`tcp://127.0.0.1:${echoPort}`);
  const port = Number(listener.url().split(":").pop());
  const sent = pattern(4_000_000);
  const back = await new Promise((resolve, reject) => {
    const pieces = [];
    let length = 0;
    const socket = net.connect(port, "127.0.0.1", () => socket.write(sent));
    socket.on("error", reject);
    socket.on("data", (piece) => {
      pieces.push(piece);
      length += piece.length;
      if (length >= sent.length) {
        resolve(Buffer.concat(pieces));
        socket.destroy();
      }
    });
  });
  assert.ok(back.equals(sent));
  await listener.close();
  await session.close();
});

test("refused by code", async () => {
  const refused = async (doing, code) => {
    const error = await doing.then(() => assert.fail("it is let in"), (error) => error);
    assert.equal(error.errorCode ?? String(error.message).match(CODE)?.[0], code);
  };
  await refused(connect("wrong"), "ERR_NGROK_105");
  const session = await connect(await credential(["bind:only.culvert.localhost"]));
  await refused(session.httpEndpoint().domain(HOST).listen(), "ERR_NGROK_316");
  await session.close();
});
