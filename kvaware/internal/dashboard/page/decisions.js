// SPDX-License-Identifier: Apache-2.0

// The last decisions, each with its candidates behind it.

const fewDecisions = 10; // are shown unless all are asked for

class Decisions {
  constructor() {
    this.items = new Map();
    this.all = false;
    byId('more').addEventListener('click', () => {
      this.all = !this.all;
      byId('more').setAttribute('aria-expanded', String(this.all));
      say(byId('more'), this.all ? 'Show fewer' : 'Show all');
      this.arrange();
    });
  }

  forget() {
    this.items.clear();
    this.arrange();
  }

  update(pool) {
    const items = new Map();
    for (const d of pool.decisions) {
      let key = d.time + ' ' + d.upstream;
      while (items.has(key)) {
        key += '+';
      }
      items.set(key, this.items.get(key) || drawDecision(d));
    }
    // One that is being read stays while it is open, even if newer ones push it out.
    for (const [key, item] of this.items) {
      if (!items.has(key) && item.firstElementChild.open && items.size < 100) {
        items.set(key, item);
      }
    }
    this.items = items;
    this.arrange();
  }

  arrange() {
    const elements = [...this.items.values()];
    const shown = this.all ? elements : elements.filter((item, i) => i < fewDecisions || item.firstElementChild.open);
    arrange(byId('decisions'), shown);
    show(byId('decisions-none'), elements.length === 0);
    show(byId('more'), elements.length > fewDecisions);
  }
}

function drawDecision(d) {
  const share = d.prompt_tokens > 0 ? d.cached_tokens / d.prompt_tokens : 0;
  const bar = make('span', { class: 'bar', 'aria-hidden': 'true' }, make('span', { class: 'ours' }));
  stretch(bar.firstElementChild, share);
  const details = make('details', {}, make('summary', {},
    make('span', { class: 'when' }, clock(d.time)),
    make('span', { class: 'who' }, d.upstream),
    make('span', {}, bar, make('small', {}, d.prompt_tokens > 0 ? count(d.cached_tokens) + ' of ' + count(d.prompt_tokens) + ' cached' : 'no prompt read')),
    make('span', { class: 'why' }, d.why)));
  // Most are never opened.
  details.addEventListener('toggle', () => {
    if (details.open && details.childElementCount === 1) {
      details.append(drawCandidates(d));
    }
  });
  return make('li', {}, details);
}

function drawCandidates(d) {
  const heads = ['candidate', 'cached', 'to compute', 'queued there', 'decoding there', 'sequences', 'token load', 'cost'];
  const rows = d.candidates.map((c) => make('tr', { class: c.chosen ? 'won' : '' },
    make('th', { scope: 'row' }, c.address + (c.chosen ? ' (chosen)' : c.excluded ? ' (full or tried)' : '')),
    ...[count(c.cached_tokens), count(c.uncached_tokens), count(c.prefill_tokens), count(c.decode_tokens), count(c.sequences), count(c.load),
      (c.cost_at_least ? '≥ ' : '') + cost(c.cost)].map((text) => make('td', {}, text))));
  const box = make('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': 'Candidates of the decision at ' + clock(d.time) },
    make('table', {},
      make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', { scope: 'col' }, head)))),
      make('tbody', {}, ...rows)));
  if (d.candidates_total > d.candidates.length) {
    box.append(make('p', { class: 'quiet' }, 'and ' + count(d.candidates_total - d.candidates.length) + ' more that cost as much or more'));
  }
  return box;
}
