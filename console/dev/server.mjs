// Stands in for the console's part of the server while one works on the pages: sessions by cookie, the management
// API behind them, and the built files with the headers of the real server. For development only.
//
//   CULVERT_API_URL=http://127.0.0.1:8420 PORT=5180 node dev/server.mjs
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';

const upstream = process.env.CULVERT_API_URL ?? 'http://127.0.0.1:8420';
const dist = fileURLToPath(
  new URL('../../crates/culvert-console/dist/', import.meta.url),
);
const sessions = new Map();
const types = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript',
  css: 'text/css',
  svg: 'image/svg+xml',
};
const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
  "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const json = (response, status, body) => {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
};
const refuse = (response, status, msg) =>
  json(response, status, {
    status_code: status,
    msg,
    details: { operation_id: 'op_dev' },
  });

async function read(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks);
}

async function session(request, response, cookie) {
  if (request.method === 'DELETE') {
    sessions.delete(cookie);
    response.writeHead(204).end();
    return;
  }
  if (request.method === 'POST') {
    const { token } = JSON.parse((await read(request)).toString());
    const self = await fetch(`${upstream}/self`, {
      headers: { authorization: `Bearer ${token}` },
    });
    if (!self.ok) return refuse(response, 401, 'The API key is not valid.');
    const { api_key: key } = await self.json();
    const id = randomUUID();
    const expires_at = new Date(Date.now() + 12 * 3600e3).toISOString();
    sessions.set(id, {
      token,
      view: {
        key_id: key.id,
        owner_id: key.owner_id,
        role: 'admin',
        expires_at,
      },
    });
    response.setHeader(
      'set-cookie',
      `culvert=${id}; Path=/console; HttpOnly; SameSite=Strict`,
    );
    return json(response, 200, sessions.get(id).view);
  }
  const known = sessions.get(cookie);
  return known
    ? json(response, 200, known.view)
    : refuse(response, 401, 'There is no session.');
}

async function api(request, response, cookie, path) {
  const known = sessions.get(cookie);
  if (!known || request.headers['x-culvert-console'] !== '1')
    return refuse(response, 401, 'There is no session.');
  const stop = new AbortController();
  response.on('close', () => stop.abort());
  const content = ['GET', 'HEAD'].includes(request.method)
    ? undefined
    : await read(request);
  const headers = { authorization: `Bearer ${known.token}` };
  if (content?.length) headers['content-type'] = 'application/json';
  const answer = await fetch(upstream + path, {
    method: request.method,
    headers,
    body: content?.length ? content : undefined,
    signal: stop.signal,
  });
  const kept = {};
  for (const name of ['content-type', 'ngrok-operation-id']) {
    if (answer.headers.has(name)) kept[name] = answer.headers.get(name);
  }
  response.writeHead(answer.status, kept);
  if (answer.body)
    Readable.fromWeb(answer.body)
      .on('error', () => response.destroy())
      .pipe(response);
  else response.end();
}

async function file(request, response, path, cookie) {
  const name = /^\/console\/assets\/[\w.-]+$/.test(path)
    ? path.slice('/console/'.length)
    : cookie
      ? 'signed-in.html'
      : 'index.html';
  const isPacked = /\bbr\b/.test(request.headers['accept-encoding'] ?? '');
  const content = await readFile(dist + name + (isPacked ? '.br' : ''));
  response.writeHead(200, {
    'content-type': types[name.split('.').pop()],
    'content-security-policy': policy,
    vary: 'accept-encoding, cookie',
    ...(isPacked ? { 'content-encoding': 'br' } : {}),
  });
  response.end(content);
}

createServer((request, response) => {
  const path = request.url.split('?')[0];
  const cookie = /(?:^|; )culvert=([^;]+)/.exec(
    request.headers.cookie ?? '',
  )?.[1];
  let done;
  if (path === '/console/session') done = session(request, response, cookie);
  else if (path.startsWith('/console/api/'))
    done = api(
      request,
      response,
      cookie,
      request.url.slice('/console/api'.length),
    );
  else if (path === '/openapi.json')
    done = fetch(upstream + path).then(async (a) =>
      json(response, 200, await a.json()),
    );
  else if (path === '/console' || path === '/')
    done = Promise.resolve(
      response.writeHead(302, { location: '/console/' }).end(),
    );
  else done = file(request, response, path, cookie);
  done.catch((error) =>
    response.headersSent
      ? response.destroy()
      : refuse(response, 502, String(error)),
  );
}).listen(Number(process.env.PORT ?? 5180), '127.0.0.1', () =>
  console.log(`http://127.0.0.1:${process.env.PORT ?? 5180}/console/`),
);
