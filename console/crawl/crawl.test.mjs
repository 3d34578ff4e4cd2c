// Every route of a seeded installation: no error, no broken policy, no request that failed or went elsewhere, no
// violation that axe knows, no markup that became an element, nothing wider than the page, nothing cut off at its side.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, describe, test } from 'node:test';
import { base, launch, open, settled, signIn } from '../tests/browser.mjs';
import { MARKUP, routesOf, seed } from '../tests/seed.mjs';
import { upstream, visit } from '../tests/upstream.mjs';

const axe = readFileSync(
  createRequire(import.meta.url).resolve('axe-core/axe.min.js'),
  'utf8',
);
let browser, service, routes, endpoint;

before(async () => {
  browser = await launch();
  service = await upstream();
  const { page, context } = await open(browser);
  await signIn(page);
  const seeded = await seed(page, service.url);
  endpoint = seeded.endpoint;
  routes = await routesOf(page, seeded.ids);
  if (process.env.ROUTES)
    routes = routes.filter((route) =>
      new RegExp(process.env.ROUTES).test(route),
    );
  await context.close();
});
after(async () => {
  await browser.close();
  service.server.close();
});

const wanted = (width, scheme) => ({
  width,
  height: width === 360 ? 760 : 900,
  scheme,
  expected: [/status of 40[14]/],
});

async function look(page, route) {
  await page.goto(`${base}/console${route}`);
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  await settled(page);
  if (route === '/traffic') {
    await page.getByText('Live', { exact: true }).waitFor();
    await page.waitForTimeout(600);
    await visit(endpoint.public_url, '/seen?q=%3Cimg%20src=x%3E', {
      'user-agent': MARKUP,
    });
    await page.getByRole('option').first().click();
  }
  if (route.startsWith('/audit?')) {
    await page.getByRole('combobox', { name: 'Search' }).fill('type:');
    await page
      .getByRole('listbox', { name: 'Completions' })
      .getByRole('option')
      .first()
      .waitFor();
  }
  if (route === '/nodes') {
    await page.keyboard.press('Control+k');
    await page
      .getByRole('combobox', { name: 'Page, name, id or token' })
      .fill('seed');
    await page
      .getByRole('option', { name: /endpoint/ })
      .first()
      .waitFor();
  }
  await page.waitForTimeout(
    route.endsWith('/new') || route.endsWith('/edit') ? 400 : 100,
  );
}

async function violations(page) {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const { violations: found } = await globalThis.axe.run(document, {
      resultTypes: ['violations'],
    });
    return found.map(
      ({ id, nodes }) =>
        `${id}: ${nodes
          .slice(0, 3)
          .map((node) => `${node.target} ${node.failureSummary}`)
          .join(' | ')}`,
    );
  });
}

/** The first elements that reach over the side of the screen, where no one can scroll to them. */
function cutOff(page) {
  return page.evaluate(() => {
    const isReachable = (one) => {
      for (let up = one.parentElement; up; up = up.parentElement) {
        const { overflowX, textOverflow } = getComputedStyle(up);
        if (
          overflowX === 'auto' ||
          overflowX === 'scroll' ||
          textOverflow === 'ellipsis'
        )
          return true;
      }
      return false;
    };
    const all = [...document.querySelectorAll('main *, [role="dialog"] *')];
    return all
      .filter((one) => {
        const { width, right } = one.getBoundingClientRect();
        return width > 1 && right > innerWidth + 1 && !isReachable(one);
      })
      .slice(0, 3)
      .map((one) => one.outerHTML.slice(0, 120));
  });
}

const PAIRS = [1440, 768, 360].flatMap((width) =>
  ['light', 'dark'].map((scheme) => [width, scheme]),
);

describe('every page', { concurrency: 2 }, () => {
  for (const [width, scheme] of PAIRS) {
    test(`at ${width} pixels, ${scheme}`, { timeout: 900_000 }, async (t) => {
      const { page, context, faults } = await open(
        browser,
        wanted(width, scheme),
      );
      await page.goto(`${base}/console/`);
      await page.getByLabel('Token of an API key').waitFor();
      for (const one of await violations(page)) faults.push(`sign-in: ${one}`);
      for (const one of await cutOff(page)) faults.push(`sign-in: ${one}`);
      await signIn(page);
      for (const route of routes) {
        await look(page, route);
        const found = await violations(page);
        const made = await page.evaluate(
          () => document.querySelectorAll('img[src="x"], main b > b').length,
        );
        const wide = await page.evaluate(
          () =>
            document.documentElement.scrollWidth -
            document.documentElement.clientWidth,
        );
        if (found.length > 0) faults.push(`${route}: ${found.join('\n  ')}`);
        if (made > 0) faults.push(`${route}: markup became elements`);
        for (const one of await cutOff(page))
          faults.push(`${route}: cut off: ${one}`);
        if (wide > 0)
          faults.push(`${route}: ${wide} pixels wider than the page`);
      }
      t.diagnostic(`${routes.length} routes`);
      assert.deepEqual(faults, []);
      await context.close();
    });
  }
});
