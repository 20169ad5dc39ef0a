// SPDX-License-Identifier: Apache-2.0

// The paste box: where a request would go, as a picture. The body goes to this
// page's own server only.

const gridBlocks = 160; // from more blocks on they are not drawn one by one
const excluded = { model: 'it does not serve the model', asleep: 'it sleeps' };

class Explain {
  constructor(pool) {
    this.pool = pool; // gives the pool's name
    byId('explain').addEventListener('submit', (event) => {
      event.preventDefault();
      this.ask();
    });
  }

  async ask() {
    const body = byId('body').value;
    if (!body.trim()) {
      this.told('Paste the body of a request first.');
      return;
    }
    this.told('Asking …');
    try {
      const explained = await this.post('explain', body);
      const tokenized = await this.post('tokenize', body);
      this.draw(explained, tokenized);
    } catch (error) {
      this.told(error.message);
    }
  }

  async post(question, body) {
    const query = new URLSearchParams({ ask: question });
    const pool = this.pool();
    if (pool !== null) {
      query.set('pool', pool);
    }
    if (byId('path').value) {
      query.set('path', byId('path').value);
    }
    if (byId('tenant').value && question === 'explain') {
      query.set('tenant', byId('tenant').value);
    }
    let answer;
    try {
      answer = await fetch('?' + query, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    } catch {
      throw new Error('The server did not answer.');
    }
    const data = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      throw new Error(typeof data.error === 'string' ? data.error : 'The server answered ' + answer.status + '.');
    }
    return data;
  }

  told(text) {
    say(byId('explain-said'), text);
    byId('explained').replaceChildren();
  }

  draw(e, t) {
    const best = e.upstreams[0];
    let said = `${plural(e.prompt_tokens, 'token')} in ${plural(e.blocks, 'whole block')} of ${e.block_size}, read as ${e.api}, counted by ${e.tokenizer}. `;
    if (e.reason === 'affinity') {
      said += 'It follows the upstream that made the response it continues.';
    } else if (e.tied > 1) {
      said += `One of ${e.tied} equal upstreams takes it, at random.`;
    } else if (best) {
      said += best.address + ' takes it.';
    }
    this.told(said);
    const strips = make('div', { class: 'strips' });
    const blocks = e.prompt_tokens / (e.block_size * (e.token_ratio || 1));
    strips.append(make('span', { class: 'name quiet' }, 'the prompt'), promptStrip(t, blocks), make('span', { class: 'figure quiet' }, e.objective === 'latency' ? 'cost' : 'load and penalty'));
    for (const u of e.upstreams) {
      if (u.excluded) {
        strips.append(make('span', { class: 'name quiet' }, u.address), make('span', { class: 'quiet' }, 'left out while others are there: ' + (excluded[u.excluded] || u.excluded)), make('span', {}));
        continue;
      }
      const held = e.prompt_tokens > 0 ? u.cached_tokens / e.prompt_tokens : 0;
      strips.append(
        make('span', { class: u.chosen ? 'name won' : 'name' }, (u.chosen ? '→ ' : '') + u.address),
        strip([{ share: held, ink: 'ours' }], blocks, `${u.address} holds ${count(u.cached_tokens)} of ${count(e.prompt_tokens)} tokens`),
        make('span', { class: u.chosen ? 'figure won' : 'figure' }, `holds ${percent(held)}, ${cost(u.cost)}`));
    }
    byId('explained').append(strips, legendOf(t));
  }
}

// strip draws shares of a prompt, with a line at each block's beginning.
function strip(parts, blocks, label) {
  const element = make('div', { class: 'strip', role: 'img', 'aria-label': label });
  parts.forEach((part, i) => {
    const span = make('span', { class: part.ink + (i > 0 ? ' edge' : '') });
    stretch(span, part.share);
    element.append(span);
  });
  if (blocks >= 1 && blocks <= gridBlocks) {
    const grid = make('span', { class: 'grid' });
    grid.style.backgroundSize = (100 / blocks).toFixed(4) + '% 100%';
    element.append(grid);
  }
  return element;
}

// promptStrip draws the messages of a prompt by their roles.
function promptStrip(t, blocks) {
  const prompt = t.prompts && t.prompts.length === 1 ? t.prompts[0] : null;
  if (!prompt || !prompt.messages || prompt.tokens === 0) {
    return strip([{ share: 1, ink: 'role-rest' }], blocks, 'the prompt');
  }
  const parts = [];
  let end = 0;
  for (const message of prompt.messages) {
    if (message.start > end) {
      parts.push({ share: (message.start - end) / prompt.tokens, ink: 'role-rest' });
    }
    parts.push({ share: message.tokens / prompt.tokens, ink: 'role-' + roleOf(message.role) });
    end = message.start + message.tokens;
  }
  return strip(parts, blocks, 'the prompt: ' + prompt.messages.slice(0, 50).map((m) => `${roleOf(m.role)} ${plural(m.tokens, 'token')}`).join(', '));
}

function roleOf(role) {
  return ['system', 'developer', 'user', 'assistant', 'tool', 'function'].includes(role) ? role : 'other';
}

function legendOf(t) {
  const legend = make('p', { class: 'legend' }, make('span', { class: 'key ours' }), 'held by the upstream');
  const prompt = t.prompts && t.prompts.length === 1 ? t.prompts[0] : null;
  for (const role of new Set((prompt && prompt.messages || []).map((m) => roleOf(m.role)))) {
    legend.append(' ', make('span', { class: 'key role-' + role }), role);
  }
  return legend;
}
