// SPDX-License-Identifier: Apache-2.0

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { launch, row, Tabs, violations } from './browser.js';
import { binary, Caddy, Engine, freePort, proxied, until } from './caddy.js';

let browser;
let engines;
let caddy;

const addresses = () => engines.map((engine) => engine.address);
const letGo = () => engines.forEach((engine) => engine.letGo());
const tile = (page, name) => page.locator('#totals > div').filter({ has: page.getByText(name, { exact: true }) }).locator('dd');
const prose = (seed, n) => Array.from({ length: n }, (_, i) => seed + i % 10).join(' ');

before(async () => {
  browser = await launch();
  engines = [await new Engine().start(), await new Engine().start()];
  caddy = await new Caddy(proxied(addresses())).start();
});

after(async () => {
  engines.forEach((engine) => engine.stop());
  await browser.close();
  await caddy.remove();
});

// shows waits until the page shows what the admin API tells of the load.
async function shows(page, requests) {
  await until(`the page shows ${requests} requests`, async () => {
    const [pool] = (await caddy.snapshot()).pools;
    if (pool.totals.requests !== requests || !(await tile(page, 'Running').textContent()).startsWith(String(requests))) {
      return false;
    }
    for (const u of pool.upstreams) {
      const cells = await row(page, u.address).innerText();
      const words = new Intl.NumberFormat('en');
      if (!cells.includes(words.format(u.prefill_tokens) + ' queued') || !cells.includes(words.format(u.decode_tokens) + ' running')) {
        return false;
      }
    }
    return true;
  });
}

test('the page says that nothing has been routed, shows a known load, and moves with it', async () => {
  const tabs = await Tabs.open(browser);
  const page = await tabs.tab(caddy.url + '/dash');
  await page.getByText('Nothing has been routed yet').waitFor();
  await shows(page, 0);

  const first = caddy.chat(prose('first', 300));
  await shows(page, 1);
  assert.equal(await page.getByText('Nothing has been routed yet').isVisible(), false);
  const second = caddy.chat(prose('second', 300));
  await shows(page, 2);
  for (const address of addresses()) {
    assert.equal(await row(page, address).locator('td').nth(1).innerText(), '1');
  }
  assert.equal(await page.locator('#decisions > li').count(), 2);
  await page.locator('#decisions summary').first().click();
  await page.getByRole('columnheader', { name: 'to compute' }).waitFor();
  assert.match(await page.locator('#decisions tr.won').innerText(), /\(chosen\)/);

  letGo();
  await Promise.all([first, second]);
  await shows(page, 0);
  await until('latencies are shown', async () => /\dms|\d\u202fms/.test(await tile(page, 'First token').innerText()));
  await tabs.close(caddy.url);
});

test('the page lives through a good and a failed reload', async () => {
  const tabs = await Tabs.open(browser);
  const page = await tabs.tab(caddy.url + '/dash');
  const streams = () => tabs.requests.filter((url) => url.endsWith('?stream')).length;
  const before = streams();
  assert.equal(await caddy.load((port) => proxied(addresses())(port) + `http://127.0.0.1:${port}/x {\n\tnonsense\n}\n`), 400);
  const running = caddy.chat(prose('reload', 200));
  await shows(page, 1);
  assert.equal(streams(), before, 'a failed reload ended the stream');

  assert.equal(await caddy.load(proxied(addresses(), 'max_sequences 64')), 200);
  await until('the page comes again', () => streams() > before);
  letGo();
  await running;
  await shows(page, 0);
  await page.locator('#state.live').waitFor();
  await tabs.close(caddy.url);
});

test('the page says that the connection is lost, and comes back after a restart', async () => {
  const tabs = await Tabs.open(browser);
  const page = await tabs.tab(caddy.url + '/dash');
  const took = await caddy.stop();
  assert.ok(took < 5000, `an open page kept Caddy from ending for ${took} ms`);
  await page.getByText('Connection lost').waitFor();
  await caddy.start();
  await page.locator('#state.live').waitFor({ timeout: 20_000 });
  await page.getByText('Nothing has been routed yet').waitFor();
  await tabs.close(caddy.url);
});

test('a pasted body is explained as a picture, and nothing of it is sent on', async () => {
  const tabs = await Tabs.open(browser);
  const page = await tabs.tab(caddy.url + '/dash');
  const known = caddy.chat(prose('known', 400));
  await until('it arrived', () => engines.some((engine) => engine.waiting.length));
  letGo();
  await known;
  const [holder] = (await caddy.snapshot()).pools[0].upstreams.filter((u) => u.idle_kv_tokens > 300);
  await page.getByLabel(/Body of a request/).fill(JSON.stringify({ model: 'demo', stream: true, messages: [{ role: 'user', content: prose('known', 400) + ' and more of it' }] }));
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText(`${holder.address} takes it.`).waitFor();
  const strip = page.getByRole('img', { name: new RegExp(`^${holder.address} holds .* tokens`) });
  const [held, whole] = (await strip.getAttribute('aria-label')).match(/holds ([\d,]+) of ([\d,]+)/).slice(1).map((n) => Number(n.replace(',', '')));
  assert.ok(held > 300 && held < whole, `${held} of ${whole}`);
  const drawn = await strip.evaluate((element) => element.firstElementChild.getBoundingClientRect().width / element.getBoundingClientRect().width);
  assert.ok(Math.abs(drawn - held / whole) < 0.01, `${drawn} is drawn of ${held / whole}`);
  await page.getByRole('img', { name: /^the prompt: user/ }).waitFor();

  await page.getByLabel(/Body of a request/).fill('{"messages":');
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText('ends too early').waitFor();
  assert.equal(engines.some((engine) => engine.waiting.length), false);
  tabs.complaints = tabs.complaints.filter((text) => !text.includes('status of 400')); // which is as it should be
  await tabs.close(caddy.url);
});

test('axe finds nothing, in light and dark, on a desk and on a phone', async () => {
  const running = caddy.chat(prose('seen', 100));
  for (const colorScheme of ['light', 'dark']) {
    for (const viewport of [{ width: 1280, height: 900 }, { width: 390, height: 800 }]) {
      const tabs = await Tabs.open(browser, { colorScheme, viewport });
      const page = await tabs.tab(caddy.url + '/dash');
      await shows(page, 1);
      await page.locator('#decisions summary').first().click();
      await page.getByLabel(/Body of a request/).fill('{"messages":[{"role":"user","content":"hi"}]}');
      await page.getByRole('button', { name: 'Explain' }).click();
      await page.locator('.strips').waitFor();
      assert.deepEqual(await violations(page), [], `${colorScheme}, ${viewport.width} pixels`);
      for (const width of [320, 390, 740, 1000, 1160, 1180, 1280]) {
        await page.setViewportSize({ width, height: 900 });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `at ${width} pixels the page is ${wide} too wide`);
      }
      await tabs.close(caddy.url);
    }
  }
  letGo();
  await running;
});

test('tabs share one stream, a hidden one has none, and the next takes over', async () => {
  const tabs = await Tabs.open(browser);
  const streams = () => tabs.requests.filter((url) => url.endsWith('?stream')).length;
  const one = await tabs.tab(caddy.url + '/dash');
  const two = await tabs.tab(caddy.url + '/dash');
  assert.equal(streams(), 1);
  const running = caddy.chat(prose('tabs', 100));
  await shows(one, 1);
  await shows(two, 1);
  assert.equal(streams(), 1);

  await one.evaluate(() => {
    Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  });
  await until('the other tab has the stream', () => streams() === 2);
  letGo();
  await running;
  await shows(two, 0);
  assert.match(await tile(one, 'Running').innerText(), /^1/, 'a hidden tab goes on');
  await one.evaluate(() => {
    delete document.visibilityState;
    document.dispatchEvent(new Event('visibilitychange'));
  });
  await shows(one, 0);
  assert.equal(streams(), 2);
  await two.close();
  await until('the first tab has the stream', () => streams() === 3);
  await tabs.close(caddy.url);
});

test('the page is used with the keyboard, and stands still when it is paused', async () => {
  const tabs = await Tabs.open(browser);
  const page = await tabs.tab(caddy.url + '/dash');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'upstreams-head');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.getByRole('columnheader', { name: 'to compute' }).waitFor();
  const focused = await page.evaluate(() => document.activeElement.textContent);
  const running = caddy.chat(prose('keyboard', 100));
  await shows(page, 1);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), focused, 'an update took the focus');
  await page.getByRole('button', { name: 'Pause' }).press('Enter');
  await page.getByText('Paused').waitFor();
  letGo();
  await running;
  await until('a snapshot came', () => page.evaluate('page.last.pools[0].totals.requests === 0'));
  assert.match(await tile(page, 'Running').innerText(), /^1/);
  await page.getByRole('button', { name: 'Pause' }).press('Enter');
  await shows(page, 0);
  await tabs.close(caddy.url);
});

test('two hundred upstreams are listed, found and drawn in time', async () => {
  const many = Array.from({ length: 200 }, (_, i) => `10.0.0.${i + 1}:8000`);
  const crowd = await new Caddy(proxied(many)).start();
  try {
    const tabs = await Tabs.open(browser);
    const page = await tabs.tab(crowd.url + '/dash');
    await until('all are listed', async () => await page.locator('#upstream-rows tr').count() === 200);
    assert.equal(await page.locator('#upstream-rows tr').nth(9).getByRole('rowheader').innerText(), '10.0.0.10:8000');
    await page.getByLabel('Find').fill('10.0.0.19');
    assert.equal(await page.locator('#upstream-rows tr').count(), 11);
    await page.getByLabel('Find').fill('');
    const took = await page.evaluate(`(() => {
      const times = [];
      const points = Array.from({ length: 150 }, (_, i) => Date.parse(page.last.time) - 2000 * (150 - i));
      const columns = () => ({ prefill_tokens: points.map((p) => p % 997), decode_tokens: points.map((p) => p % 9973) });
      page.last.pools[0].history = { times: points, ...columns() };
      page.last.pools[0].upstreams.forEach((u) => { u.history = columns(); });
      draw(page.last);
      for (let i = 0; i < 20; i++) {
        const snapshot = structuredClone(page.last);
        delete snapshot.pools[0].history;
        snapshot.time = new Date(Date.parse(snapshot.time) + 1000 * (i + 1)).toISOString();
        snapshot.pools[0].upstreams.forEach((u, j) => { u.decode_tokens = (i * 977 + j * 331) % 50000; });
        const began = performance.now();
        takeSnapshot(snapshot);
        document.body.getBoundingClientRect();
        times.push(performance.now() - began);
      }
      return times.sort((a, b) => a - b)[10];
    })()`);
    assert.ok(took < 250, `an update takes ${took} ms`);
    console.log(`# an update of 200 upstreams takes ${took.toFixed(1)} ms`);
    assert.deepEqual(await violations(page), []);
    await tabs.close(crowd.url);
  } finally {
    await crowd.remove();
  }
});

test('names from outside are text, and pools can be chosen', async () => {
  const evil = '<img src=x onerror=alert(1)>';
  const pools = await new Caddy((port) => proxied([engines[0].address])(port)
    + `http://127.0.0.1:${port + 1} {\n\treverse_proxy ${engines[1].address} {\n\t\tlb_policy kv_aware {\n\t\t\tpool "${evil}"\n\t\t}\n\t}\n}\n`).start();
  try {
    const tabs = await Tabs.open(browser);
    const page = await tabs.tab(pools.url + '/dash');
    await row(page, engines[0].address).waitFor();
    await page.getByLabel('Pool').selectOption(evil);
    await row(page, engines[1].address).waitFor();
    assert.equal(await page.locator('#upstream-rows tr').count(), 1);
    assert.equal(await page.locator('img').count(), 0);
    // What engines say of their event streams is shown as it comes. Paused, so that no
    // snapshot takes its place.
    await page.getByRole('button', { name: 'Pause' }).click();
    await page.evaluate(`(() => {
      page.last.pools.forEach((pool) => { pool.upstreams[0].events = { state: '<b>broken</b>', gpu_blocks: 1200, gaps_total: 2, lag_seconds: 1.5 }; });
      draw(page.last);
    })()`);
    assert.equal(await page.locator('#upstream-rows td.events').innerText(), '<b>broken</b>, GPU blocks 1,200, gaps 2, lag 1.50\u202fs');
    // However long they are, the page stays as wide as the window, and its rows are rows.
    await page.evaluate(`(() => {
      page.last.pools.forEach((pool) => {
        pool.upstreams[0].address = 'A'.repeat(10000);
        pool.upstreams[0].events = { state: 'B'.repeat(10000) };
        pool.decisions = [{ time: page.last.time, upstream: 'C'.repeat(10000), why: 'D'.repeat(10000), prompt_tokens: 1, cached_tokens: 0, candidates: [], candidates_total: 0 }];
      });
      draw(page.last);
    })()`);
    for (const width of [320, 390, 740, 1000, 1180, 1280]) {
      await page.setViewportSize({ width, height: 900 });
      const [wide, high] = await page.evaluate(() => [document.documentElement.scrollWidth - innerWidth,
        Math.max(...[...document.querySelectorAll('#upstream-rows tr, #decisions > li')].map((row) => row.offsetHeight))]);
      assert.ok(wide <= 0 && high < 600, `at ${width} pixels the page is ${wide} too wide, and a row ${high} high`);
    }
    await tabs.close(pools.url);
  } finally {
    await pools.remove();
  }
});

test('the command shows a running Caddy, and says when it does not answer', async () => {
  const running = await new Caddy(proxied(addresses())).start();
  const port = await freePort();
  const command = spawn(binary, ['kv-aware', 'dashboard', '--no-open', '--listen', `127.0.0.1:${port}`, '--address', `127.0.0.1:${running.adminPort}`]);
  try {
    const url = `http://127.0.0.1:${port}/`;
    await until('it serves', () => fetch(url).then((answer) => answer.ok, () => false));
    const tabs = await Tabs.open(browser);
    const page = await tabs.tab(url);
    await row(page, engines[0].address).waitFor();
    await running.stop();
    await page.getByText('Caddy does not answer').waitFor();
    await page.getByText('no Caddy answers at').waitFor();
    await running.start();
    await page.locator('#state.live').waitFor();
    await tabs.close(url);
  } finally {
    command.kill('SIGTERM');
    await running.remove();
  }
});
