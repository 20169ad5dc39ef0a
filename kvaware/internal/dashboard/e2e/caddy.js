// SPDX-License-Identifier: Apache-2.0

// A Caddy of its own for a test, with engines that stream when they are told to.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';

export const binary = process.env.CADDY;
if (!binary) {
  throw new Error('CADDY must name the binary to test: go build -o caddy ./examples/caddy');
}

// freePort gives a port of the loopback interface that nobody listens on.
export async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

// until waits for what comes about elsewhere.
export async function until(what, holds, seconds = 15) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    if (await holds()) {
      return;
    }
    if (Date.now() > end) {
      throw new Error('waited in vain until ' + what);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// Engine streams a first token, waits until it is let go, and ends.
export class Engine {
  constructor() {
    this.waiting = [];
    this.server = http.createServer((request, response) => {
      request.resume();
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      const token = (text) => response.write(`data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"${text}"}}]}\n\n`);
      token('a');
      this.waiting.push(() => {
        token('b');
        response.end('data: [DONE]\n\n');
      });
    });
  }

  async start() {
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    this.address = '127.0.0.1:' + this.server.address().port;
    return this;
  }

  letGo() {
    this.waiting.splice(0).forEach((go) => go());
  }

  stop() {
    this.letGo();
    this.server.closeAllConnections();
    this.server.close();
  }
}

export class Caddy {
  // sites gives the site blocks for a port.
  constructor(sites) {
    this.sites = sites;
  }

  async start() {
    this.dir ??= await mkdtemp(path.join(tmpdir(), 'kv-e2e-'));
    this.port ??= await freePort();
    this.adminPort ??= await freePort();
    this.url = `http://127.0.0.1:${this.port}`;
    this.file = path.join(this.dir, 'Caddyfile');
    await writeFile(this.file, this.text(this.sites));
    this.log = '';
    this.process = spawn(binary, ['run', '--config', this.file], { env: { ...process.env, XDG_DATA_HOME: this.dir, XDG_CONFIG_HOME: this.dir } });
    this.process.stderr.on('data', (data) => { this.log += data; });
    this.exited = once(this.process, 'exit');
    await until('Caddy serves', async () => {
      if (this.process.exitCode !== null) {
        throw new Error('Caddy ended: ' + this.log);
      }
      return fetch(this.url + '/dash').then((answer) => answer.ok, () => false);
    }, 30);
    return this;
  }

  text(sites) {
    return `{\n\tadmin 127.0.0.1:${this.adminPort}\n\tauto_https off\n\tpersist_config off\n\tstorage file_system ${this.dir}\n}\n` + sites(this.port);
  }

  // admin asks the admin API. It refuses what fetch sends: that calls itself a browser.
  async admin(method, path, type, body) {
    const request = http.request({ host: '127.0.0.1', port: this.adminPort, method, path, headers: type ? { 'Content-Type': type } : {} });
    request.end(body);
    const [response] = await once(request, 'response');
    let text = '';
    for await (const chunk of response.setEncoding('utf8')) {
      text += chunk;
    }
    return { status: response.statusCode, text };
  }

  // load replaces the configuration, and gives the answer's status.
  async load(sites) {
    return (await this.admin('POST', '/load', 'text/caddyfile', this.text(sites))).status;
  }

  async snapshot() {
    return JSON.parse((await this.admin('GET', '/kv_aware/snapshot')).text);
  }

  // chat sends a streamed request, and gives the promise of its whole answer.
  chat(text) {
    return fetch(this.url + '/v1/chat/completions', {
      method: 'POST', headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ model: 'demo', stream: true, messages: [{ role: 'user', content: text }] }),
    }).then((answer) => answer.text());
  }

  // stop interrupts Caddy, and gives how many milliseconds it took to end.
  async stop() {
    const began = Date.now();
    this.process.kill('SIGTERM');
    await this.exited;
    return Date.now() - began;
  }

  async remove() {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill('SIGKILL');
      await this.exited;
    }
    await rm(this.dir, { recursive: true, force: true });
  }
}

// proxied is a site with a dashboard over upstreams.
export const proxied = (upstreams, options = '') => (port) => `http://127.0.0.1:${port} {
	kv_aware_dashboard /dash
	reverse_proxy ${upstreams.join(' ')} {
		lb_policy kv_aware {
			${options}
		}
	}
}
`;
