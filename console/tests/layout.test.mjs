// Every list, and every page of an object, at every width: nothing reaches over the side, nothing is cut without a sign
// and a tooltip, and no word takes two lines that fits on one.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { go, launch, open, settled, signIn } from './browser.mjs';
import { seed } from './seed.mjs';
import { program, Server } from './server.mjs';

/** The narrowest phone, and each side of the widths at which the style sheet changes. */
const WIDTHS = [320, 360, 696, 697, 768, 900, 901, 1024, 1440];
const OF_OBJECTS = [320, 360, 768, 1440];
/** Names as long as they may be. */
const LABEL = 'a-very-long-name-of-a-service-in-a-cluster-of-a-large-company';
const N_ENDPOINTS = 45;
/** More than the width of a sign, such as a dot or an at sign. */
const SIGN_PX = 16;

let browser, server, page, faults, ids;
before(async () => {
  browser = await launch();
  if (!program) return;
  server = await Server.start();
  ({ page, faults } = await open(browser, {
    // A busy machine sheds some of the calls that pages make at one time; the console repeats them.
    expected: [/status of (40[14]|503)/],
    at: server.url,
  }));
  await signIn(page, '/console/', server.token, server.url);
  ({ ids } = await seed(page, 'http://127.0.0.1:9'));
  await server.make('users', { email: `${LABEL}@${LABEL}.example.com` });
  await server.make('vaults', { name: LABEL.replaceAll('-', '') });
  // One whose certificate is being issued: its page has objects in objects.
  ({ id: ids.reserved_domains } = await server.make('reserved_domains', {
    domain: `${LABEL}.${LABEL}.example.com`,
  }));
  await server.make('ssh_user_certificates', {
    ssh_certificate_authority_id: ids.ssh_certificate_authorities,
    public_key:
      'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINSBlGOAHu4W7UZQ2bWIMnHRb6Fh5TqYyDjCdVXvT2Vd',
    principals: ['root'],
  });
  ids.users = (await server.call('GET', '/users')).body.users[0].id;
  // A long list has columns of a fixed width.
  await Promise.all(
    Array.from({ length: N_ENDPOINTS }, (_, n) =>
      server.make('endpoints', {
        url: `https://${LABEL}${n}.culvert.localhost`,
        upstream_url: 'https://upstream.internal.example.com:8443',
      }),
    ),
  );
});
after(async () => {
  await browser.close();
  await server?.remove();
});

/** What is wrong with the layout of the page as it is now. */
function wrongs([what, SIGN_PX]) {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    found.push(
      `the page is ${root.scrollWidth - root.clientWidth} px too wide`,
    );
  const of = (one) =>
    one.outerHTML.replaceAll(/ class="[^"]*"/g, '').slice(0, 160);
  for (const one of document.querySelectorAll(`${what}, ${what} *`)) {
    const { overflowX, textOverflow, clipPath } = getComputedStyle(one);
    if (
      one.scrollWidth <= one.clientWidth + 1 ||
      one.clientWidth <= 1 ||
      clipPath !== 'none' ||
      !one.checkVisibility()
    )
      continue;
    if (one.matches('pre, textarea, input')) continue;
    if (overflowX === 'auto' || overflowX === 'scroll')
      found.push(`scrolls to its side: ${of(one)}`);
    if (
      overflowX === 'hidden' &&
      (textOverflow !== 'ellipsis' || !one.closest('[title]'))
    )
      found.push(`cut: ${of(one)}`);
  }
  // Letters and digits stay together if their line has room for them.
  for (const block of document.querySelectorAll(
    `${what} h1, ${what} th, ${what} td`,
  )) {
    if (!block.checkVisibility()) continue;
    const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      // A cell may have its label beside the box of its text.
      let box = text.parentElement;
      while (getComputedStyle(box).display === 'inline')
        box = box.parentElement;
      const { paddingLeft, paddingRight } = getComputedStyle(box);
      // A sign between words stays with one of them.
      const room =
        box.clientWidth -
        Number.parseFloat(paddingLeft) -
        Number.parseFloat(paddingRight) -
        SIGN_PX;
      for (const { 0: word, index } of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        const pieces = [...range.getClientRects()].filter(
          ({ width }) => width > 0,
        );
        const width = pieces.reduce((sum, one) => sum + one.width, 0);
        if (
          new Set(pieces.map(({ top }) => Math.round(top))).size > 1 &&
          width < room
        )
          found.push(`“${word}” takes two lines: ${of(block)}`);
      }
    }
  }
  return found;
}

/** The faults of a page at each width. */
async function check(path, widths) {
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    for (const one of await page.evaluate(wrongs, ['main', SIGN_PX]))
      faults.push(`${path} at ${width}: ${one}`);
  }
}

test(
  'every list has room at every width',
  { skip: !program, timeout: 300_000 },
  async (t) => {
    const { paths } = await page.evaluate(async () =>
      (await fetch('/openapi.json')).json(),
    );
    const collections = Object.keys(paths)
      .filter((path) => path.endsWith('/{id}') && path.split('/{').length === 2)
      .map((path) => path.slice(1, -'/{id}'.length));
    for (const collection of collections) {
      // What can be made has an object here.
      assert.equal(
        collection in ids,
        paths[`/${collection}`].post !== undefined,
        collection,
      );
      await go(page, `/${collection.replaceAll('/', '.')}`);
      await (
        collection in ids
          ? page.getByRole('row').nth(1)
          : page.getByRole('main').getByRole('heading', { level: 2 }).first()
      ).waitFor();
      await settled(page);
      await check(collection, WIDTHS);
    }
    t.diagnostic(`${collections.length} lists at ${WIDTHS.length} widths`);
    assert.deepEqual(faults, []);
  },
);

test(
  'so has every page of an object',
  { skip: !program, timeout: 300_000 },
  async () => {
    for (const [collection, id] of Object.entries(ids)) {
      await go(page, `/${collection}/${id}`);
      await page
        .getByRole('heading', { name: /^(Details|All fields)$/, level: 2 })
        .waitFor();
      await settled(page);
      await check(`${collection}/${id}`, OF_OBJECTS);
    }
    assert.deepEqual(faults, []);
  },
);
