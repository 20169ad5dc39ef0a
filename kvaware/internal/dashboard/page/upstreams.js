// SPDX-License-Identifier: Apache-2.0

// The table of upstreams.

const loadColumns = ['prefill_tokens', 'decode_tokens'];
const manyUpstreams = 8; // from here on they can be searched and sorted
const trendsAtOnce = 40; // are drawn in one update, at least; of more, each in its turn

class UpstreamRow {
  constructor(address) {
    this.address = address;
    this.series = new Series(loadColumns);
    this.name = make('span', {}, address);
    this.note = make('small', {});
    this.load = makeBar('decode', 'prefill');
    this.kv = makeBar('decode', 'idle');
    this.trend = new Stack({ class: 'trend' });
    this.cells = {};
    const cell = (key, label, extra) => {
      this.cells[key] = make('span', {});
      return make('td', { role: 'cell', 'data-label': label, class: extra || '' }, this.cells[key]);
    };
    this.element = make('tr', { role: 'row' },
      make('th', { role: 'rowheader', scope: 'row' }, this.name, this.note),
      make('td', { role: 'cell', class: 'wide', 'data-label': 'token load' }, this.load.element),
      cell('requests', 'running'),
      make('td', { role: 'cell', class: 'wide', 'data-label': 'KV cache' }, this.kv.element),
      cell('hit', 'hit rate'), cell('first', 'first token p50 / p99'), cell('inter', 'inter-token p50 / p99'), cell('rate', 'tokens/s'),
      make('td', { role: 'cell', 'data-label': 'last minutes' }, this.trend.element),
      cell('events', 'events', 'text events'));
  }

  // update shows an upstream; its trend only if told to.
  update(u, times, time, most, trend) {
    this.data = u;
    if (u.history && times) {
      this.series.load(times, u.history);
    }
    this.series.add(time, u);
    const notes = [];
    if (!u.configured) {
      notes.push('not in the configuration');
    }
    if (u.failure_score >= 0.05) {
      notes.push('recent failures weigh ' + rate(u.failure_score) + ' requests');
    }
    say(this.note, notes.join('; '));
    this.load.set([u.decode_tokens / most, u.prefill_tokens / most], count(u.prefill_tokens) + ' queued', count(u.decode_tokens) + ' running');
    const room = u.cache_tokens || 1;
    this.kv.set([u.running_kv_tokens / room, u.idle_kv_tokens / room], percent(u.running_kv_tokens / room) + ' of ' + count(u.cache_tokens), percent((u.running_kv_tokens + u.idle_kv_tokens) / room) + ' held');
    say(this.cells.requests, u.sequences === u.requests ? count(u.requests) : count(u.requests) + ' (' + count(u.sequences) + ' seq.)');
    say(this.cells.hit, percent(u.hit_rate === null ? NaN : u.hit_rate));
    say(this.cells.first, percentiles(u.time_to_first_token_ms));
    say(this.cells.inter, percentiles(u.inter_token_ms));
    say(this.cells.rate, rate(u.generated_tokens_per_second));
    say(this.cells.events, eventWords(u.events));
    this.cells.events.className = eventClass(u.events);
    if (trend) {
      this.trend.draw(this.series);
    }
  }
}

// eventWords words how far an engine's KV events are followed.
function eventWords(events) {
  if (!events) {
    return unknown;
  }
  const parts = [events.state];
  for (const [name, n] of [['GPU blocks', events.gpu_blocks], ['offloaded blocks', events.offload_blocks], ['gaps', events.gaps_total]]) {
    if (n) {
      parts.push(name + ' ' + count(n));
    }
  }
  if (events.lag_seconds) {
    parts.push('lag ' + milliseconds(events.lag_seconds * 1000));
  }
  return parts.join(', ');
}

function eventClass(events) {
  return events && events.state !== 'live' ? 'bad' : '';
}

const orders = {
  address: (a, b) => compareNames(a.address, b.address),
  load: (a, b) => b.load - a.load,
  hit: (a, b) => (b.hit_rate || 0) - (a.hit_rate || 0),
  first: (a, b) => (b.time_to_first_token_ms ? b.time_to_first_token_ms.p99 : 0) - (a.time_to_first_token_ms ? a.time_to_first_token_ms.p99 : 0),
};

const names = new Intl.Collator('en', { numeric: true });

function compareNames(a, b) {
  return names.compare(a, b);
}

class Upstreams {
  constructor() {
    this.rows = new Map();
    this.order = 'address';
    byId('sort').addEventListener('change', () => {
      this.order = byId('sort').value;
      this.arrange();
    });
    byId('find').addEventListener('input', () => this.arrange());
  }

  forget() {
    this.rows.clear();
    this.arrange();
  }

  update(pool, time, truncated) {
    const times = pool.history && pool.history.times;
    const most = Math.max(1, ...pool.upstreams.map((u) => u.prefill_tokens + u.decode_tokens));
    const seen = new Set();
    const turns = Math.ceil(pool.upstreams.length / trendsAtOnce);
    this.turn = ((this.turn || 0) + 1) % turns || 0;
    pool.upstreams.forEach((u, i) => {
      let row = this.rows.get(u.address);
      if (!row) {
        row = new UpstreamRow(u.address);
        this.rows.set(u.address, row);
      }
      row.update(u, times, time, most, times || i % turns === this.turn);
      seen.add(u.address);
    });
    for (const address of this.rows.keys()) {
      if (!seen.has(address)) {
        this.rows.delete(address);
      }
    }
    show(byId('upstream-controls'), this.rows.size >= manyUpstreams);
    show(byId('upstreams-more'), truncated);
    say(byId('upstreams-more'), truncated ? count(pool.upstreams.length) + ' of ' + count(pool.upstreams_total) + ' are listed; the totals are of all.' : '');
    this.arrange();
  }

  arrange() {
    const asked = byId('upstream-controls').hidden ? '' : byId('find').value.trim().toLowerCase();
    const rows = [...this.rows.values()].filter((row) => !asked || row.address.toLowerCase().includes(asked));
    rows.sort((a, b) => orders[this.order](a.data, b.data) || compareNames(a.address, b.address));
    arrange(byId('upstream-rows'), rows.map((row) => row.element));
  }
}
