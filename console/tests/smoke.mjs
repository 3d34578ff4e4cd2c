import { launch, open, signIn, settled, base } from './browser.mjs';
const b = await launch(); const { page, faults } = await open(b, {expected:[/401/]});
await signIn(page);
for (const p of ['', 'endpoints','endpoints/new','api_keys','event_destinations/new','event_subscriptions/new','traffic','audit','tunnel_sessions','connect','reserved_domains/new','vaults','app.users','nonsense']) {
  await page.goto(base+'/console/'+p); await page.waitForTimeout(400); await settled(page).catch(e=>faults.push(p+' '+e.message.slice(0,100)));
  await page.screenshot({path:`/tmp/cons-dev/shot-${p.replace('/','_')||'home'}.png`});
}
console.log(faults.join('\n')||'clean'); await b.close();
