// A service for endpoints of tests, and requests to it through the edge.
import { createServer, request } from 'node:http';

/** Answers with the status that the path ends in. */
export async function upstream() {
  const server = createServer((incoming, response) => {
    response.writeHead(Number(/(\d{3})$/.exec(incoming.url)?.[1] ?? 200), {
      'content-type': 'text/plain',
    });
    response.end('hello\n');
  });
  await new Promise((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return { server, url: `http://127.0.0.1:${server.address().port}` };
}

/** A request to the public address of an endpoint on this machine. */
export function visit(publicUrl, path, headers = {}) {
  const { host, port } = new URL(publicUrl);
  return new Promise((resolve, reject) => {
    const call = request(
      {
        host: '127.0.0.1',
        port: port || 80,
        path,
        headers: { host, ...headers },
      },
      (response) => {
        response.resume();
        response.on('end', () => resolve(response.statusCode));
      },
    );
    call.on('error', reject);
    call.end();
  });
}
