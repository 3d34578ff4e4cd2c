// Takes the pictures of the README: node screenshot.mjs DIRECTORY. A server must run; see scripts/screenshot.
import { join } from 'node:path';
import { launch, open, settled, signIn } from '../tests/browser.mjs';

const directory = process.argv[2];
const browser = await launch();
for (const scheme of ['light', 'dark']) {
  const { page, context } = await open(browser, {
    width: 1200,
    height: 720,
    scheme,
  });
  await signIn(page, '/console/traffic');
  await settled(page);
  await page.getByText('/checkout').first().waitFor();
  await page.screenshot({ path: join(directory, `console-${scheme}.png`) });
  await context.close();
}
await browser.close();
