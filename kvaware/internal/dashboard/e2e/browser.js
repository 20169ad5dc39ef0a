// SPDX-License-Identifier: Apache-2.0

// The browser, and what must hold of every page that is opened in it.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import process from 'node:process';
import { chromium } from 'playwright-core';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM || '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
}

// Tabs are the tabs of one profile, and what they did.
export class Tabs {
  constructor(context) {
    this.context = context;
    this.requests = [];
    this.complaints = [];
    context.on('request', (request) => this.requests.push(request.url()));
    context.on('weberror', (error) => this.complaints.push(error.error().message));
    context.on('console', (message) => {
      // A connection that is lost is said so by the browser, too.
      if (message.type() === 'error' && !/ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|CONNECTION_RESET)|status of 50[23]/.test(message.text())) {
        this.complaints.push(message.text());
      }
    });
  }

  static async open(browser, options = {}) {
    return new Tabs(await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options }));
  }

  async tab(url) {
    const page = await this.context.newPage();
    await page.goto(url);
    await page.locator('#state.live').waitFor();
    return page;
  }

  // close checks that nothing went elsewhere and nothing was refused or thrown.
  async close(origin) {
    await this.context.close();
    assert.deepEqual(this.requests.filter((url) => !url.startsWith(origin) && !url.startsWith('data:')), [], 'requests to elsewhere');
    assert.deepEqual(this.complaints, [], 'errors in the console');
  }
}

// violations gives what axe finds.
export async function violations(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((node) => node.html + ' ' + node.failureSummary).join(' | ')}`);
}

// row gives an upstream's row.
export const row = (page, address) => page.locator('#upstreams').getByRole('row').filter({ has: page.getByRole('rowheader', { name: address, exact: true }) });
