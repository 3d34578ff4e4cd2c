// From `culvert serve` on an empty folder to the first public URL and its first event on screen, without a terminal.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fromFolder, launch } from './browser.mjs';

const WITHIN_S = 180;
const free = '127.0.0.1:0';

test(
  'the first run leads to a public URL and its event',
  { skip: !process.env.CULVERT_PROGRAM },
  async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'culvert-first-'));
    const own = Object.fromEntries(
      Object.entries(process.env).filter(
        ([name]) => !name.startsWith('CULVERT_'),
      ),
    );
    const started = performance.now();
    const server = spawn(
      process.env.CULVERT_PROGRAM,
      [
        'serve',
        '--api-addr',
        free,
        '--edge-http-addr',
        free,
        '--edge-https-addr',
        free,
        '--agents-addr',
        free,
        '--agents-ssh-addr',
        free,
        '--metrics-addr',
        '',
      ],
      { cwd: folder, env: own, stdio: ['ignore', 'pipe', 'ignore'] },
    );
    const browser = await launch();
    try {
      let said = '';
      let port;
      for await (const piece of server.stdout) {
        said += piece;
        port = /culvert ready api=http:\S+:(\d+) /.exec(said)?.[1];
        if (port) break;
      }
      server.stdout.resume();
      const context = await browser.newContext();
      await fromFolder(context);
      context.setDefaultTimeout(60_000);
      const page = await context.newPage();
      await page.goto(`http://localhost:${port}/`);
      await page
        .getByLabel('Token of an API key')
        .fill(
          readFileSync(
            join(folder, 'culvert-data/bootstrap-key'),
            'utf8',
          ).trim(),
        );
      await page.keyboard.press('Enter');
      await page
        .getByRole('button', { name: 'Create a sample endpoint' })
        .click();
      const url = page.getByRole('link', { name: /^Open http/ });
      const opened = context.waitForEvent('page');
      await url.click();
      await (await opened).getByText('Hello from culvert.').waitFor();
      // The steps go away by themselves, and the request is there.
      await page
        .getByRole('heading', { name: 'First steps' })
        .waitFor({ state: 'detached' });
      await page.getByRole('link', { name: 'Watch requests' }).click();
      await page.getByRole('option', { name: /get/i }).first().waitFor();
      const seconds = (performance.now() - started) / 1000;
      t.diagnostic(`${seconds.toFixed(1)} s`);
      assert.ok(seconds < WITHIN_S, `${seconds} s`);

      // What no one has used yet says how it begins.
      const next = {
        'app.users': 'openid-connect',
        'app.sessions': 'openid-connect',
        tunnels: 'culvert http 3000',
      };
      for (const [path, command] of Object.entries(next)) {
        await page.goto(`http://localhost:${port}/console/${path}`);
        await page.getByText('In a terminal:').waitFor();
        await page.locator('pre', { hasText: command }).waitFor();
      }
    } finally {
      await browser.close();
      server.kill();
      rmSync(folder, { recursive: true });
    }
  },
);
