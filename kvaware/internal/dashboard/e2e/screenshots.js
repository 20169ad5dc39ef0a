// SPDX-License-Identifier: Apache-2.0

// Makes the pictures of the README: the quickstart under a load of conversations, as
// `caddy kv-aware dashboard` shows it. From this folder, with the ports of the
// quickstart free:
//
//	npm ci && CADDY=/path/to/caddy node screenshots.js
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { launch, Tabs } from './browser.js';
import { binary, freePort, until } from './caddy.js';

const root = fileURLToPath(new URL('../../../../', import.meta.url));
const seconds = 75; // of load before the pictures, so that the plots show something

const words = (seed, n) => Array.from({ length: n }, (_, i) => seed + (i * 7) % 97).join(' ');

// talk has conversations that grow, in waves, until it is told to end.
async function talk(number, ended) {
  for (let round = 0; !ended(); round++) {
    const messages = [{ role: 'system', content: words('rule' + (number % 3) + ' ', 900) }];
    for (let turn = 0; turn < 5 && !ended(); turn++) {
      messages.push({ role: 'user', content: words(`n${number}r${round}t${turn} `, 60 + 500 * (number % 4)) });
      const answer = await fetch('http://127.0.0.1:8080/v1/chat/completions', {
        method: 'POST', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ model: 'demo', stream: true, max_tokens: 100 + 60 * (number % 5), messages }),
      });
      messages.push({ role: 'assistant', content: 'answer of ' + (await answer.text()).length });
      await new Promise((resolve) => setTimeout(resolve, (number % 6) * 400));
    }
  }
}

const home = await mkdtemp(path.join(tmpdir(), 'kv-shots-'));
const env = { ...process.env, XDG_DATA_HOME: home, XDG_CONFIG_HOME: home };
const caddy = spawn(binary, ['run', '--config', 'examples/quickstart.caddyfile'], { cwd: root, env, stdio: 'ignore' });
let command;
let browser;
let over = false;
try {
  await until('the quickstart serves', () => fetch('http://127.0.0.1:8080/v1/models').then((answer) => answer.ok, () => false), 30);
  const port = await freePort();
  command = spawn(binary, ['kv-aware', 'dashboard', '--no-open', '--listen', `127.0.0.1:${port}`], { env, stdio: 'ignore' });
  const url = `http://127.0.0.1:${port}/`;
  await until('the dashboard serves', () => fetch(url).then((answer) => answer.ok, () => false));
  const talks = Array.from({ length: 30 }, (_, number) => talk(number, () => over));
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  browser = await launch();
  for (const colorScheme of ['light', 'dark']) {
    const tabs = await Tabs.open(browser, { colorScheme, viewport: { width: 1200, height: 900 } });
    const page = await tabs.tab(url);
    await until('decisions are shown', async () => await page.locator('#decisions > li').count() > 5);
    await page.screenshot({ path: path.join(root, `docs/dashboard-${colorScheme}.png`) });
    if (colorScheme === 'light') {
      await page.getByLabel(/Body of a request/).fill(JSON.stringify({ model: 'demo', stream: true, messages: [
        { role: 'system', content: words('rule0 ', 900) }, { role: 'user', content: words('n0r0t0 ', 60) }, { role: 'assistant', content: 'answer' }, { role: 'user', content: words('another question ', 150) }] }));
      await page.getByRole('button', { name: 'Explain' }).click();
      await page.locator('.strips').waitFor();
      await page.locator('#explained').screenshot({ path: path.join(root, 'docs/dashboard-explain.png') });
    }
    await tabs.close(url);
  }
  over = true;
  await Promise.all(talks);
} finally {
  over = true;
  await browser?.close();
  for (const child of [command, caddy]) {
    if (child && child.exitCode === null) {
      child.kill('SIGTERM');
      await once(child, 'exit');
    }
  }
  await rm(home, { recursive: true, force: true });
}
