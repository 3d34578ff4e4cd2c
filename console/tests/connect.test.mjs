// The Connect page where the certificate of the installation itself protects the console: its first line works on a machine
// that does not trust the CA, and takes no other certificate.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { launch, open, signIn } from './browser.mjs';
import { program, run, Server } from './server.mjs';

test(
  'the first line gets the CA over TLS that this machine does not trust yet',
  { skip: !program },
  async (t) => {
    const browser = await launch();
    const server = await Server.start(['--api-tls-addr', '127.0.0.1:0']);
    const folder = mkdtempSync(join(tmpdir(), 'culvert-connect-'));
    t.after(async () => {
      await browser.close();
      await server.remove();
      rmSync(folder, { recursive: true });
    });
    const { port } = new URL(server.listeners['api-tls']);
    const at = `https://localhost:${port}`;
    const { page, faults } = await open(browser, {
      at,
      ignoreHTTPSErrors: true,
    });
    await signIn(page, '/console/connect', server.token, at);
    const shown = page.getByText(
      /^curl -kfsSo ca\.pem https:.* sha256sum -c$/m,
    );
    const [line] = /^curl .*$/m.exec(await shown.innerText());
    const paste = (command) => run('sh', ['-c', command], { cwd: folder });
    assert.match(await paste(line), /^ca\.pem: OK$/m);
    assert.equal(
      readFileSync(join(folder, 'ca.pem'), 'utf8'),
      readFileSync(join(server.folder, 'data/ca.pem'), 'utf8'),
    );
    // Without the hash, the machine would refuse; with another one, the line fails.
    await assert.rejects(paste(`curl -fsS ${at}/console/ca.pem`));
    await assert.rejects(paste(line.replace(/echo "./, 'echo "x')));
    assert.deepEqual(faults, []);
  },
);
