// SPDX-License-Identifier: Apache-2.0

// The tiles and plots of all upstreams together.

const historyColumns = ['prefill_tokens', 'decode_tokens', 'requests', 'generated_tokens_per_second', 'hit_rate',
  'time_to_first_token_p50_ms', 'time_to_first_token_p99_ms'];

class Totals {
  constructor() {
    this.tiles = new Map();
    this.series = new Series(historyColumns);
    this.plots = [
      new Plot('Load', [], count),
      new Plot('Tokens per second', [{ name: 'generated_tokens_per_second', ink: 'decode' }], rate),
      new Plot('Cache hit rate', [{ name: 'hit_rate', ink: 'third', most: 1 }], percent),
      new Plot('First token', [{ name: 'time_to_first_token_p99_ms', ink: 'prefill dashed' }, { name: 'time_to_first_token_p50_ms', ink: 'decode' }], milliseconds),
    ];
    byId('plots').append(...this.plots.map((plot) => plot.element));
  }

  tile(name, value, note) {
    let tile = this.tiles.get(name);
    if (!tile) {
      tile = { value: document.createTextNode(''), note: make('small') };
      byId('totals').append(make('div', {}, make('dt', {}, name), make('dd', {}, tile.value, tile.note)));
      this.tiles.set(name, tile);
    }
    if (tile.value.data !== value) {
      tile.value.data = value;
    }
    say(tile.note, note);
  }

  forget() {
    this.series = new Series(historyColumns);
  }

  update(pool, time) {
    const t = pool.totals;
    if (pool.history) {
      this.series.load(pool.history.times, pool.history);
    }
    this.series.add(time, {
      prefill_tokens: t.prefill_tokens,
      decode_tokens: t.decode_tokens,
      requests: t.requests,
      generated_tokens_per_second: t.generated_tokens_per_second,
      hit_rate: t.hit_rate === null ? undefined : t.hit_rate,
      time_to_first_token_p50_ms: t.time_to_first_token_ms ? t.time_to_first_token_ms.p50 : undefined,
      time_to_first_token_p99_ms: t.time_to_first_token_ms ? t.time_to_first_token_ms.p99 : undefined,
    });
    const used = t.cache_tokens > 0 ? t.running_kv_tokens / t.cache_tokens : 0;
    this.tile('Queued prefill', count(t.prefill_tokens), 'tokens');
    this.tile('Running decode', count(t.decode_tokens), 'KV tokens');
    this.tile('Running', count(t.requests), t.sequences === t.requests ? plural(t.requests, 'request').replace(/^\S+ /, '') : 'requests, ' + plural(t.sequences, 'sequence'));
    this.tile('KV cache in use', percent(used), 'of ' + count(t.cache_tokens) + ' tokens');
    this.tile('Hit rate', percent(t.hit_rate === null ? NaN : t.hit_rate), 'of prompts, last minute');
    this.tile('Saved prefill', count(t.cached_tokens_total), t.prompt_tokens_total > 0 ? 'tokens, ' + percent(t.cached_tokens_total / t.prompt_tokens_total) + ' of all prompts' : 'tokens');
    this.tile('Generated', rate(t.generated_tokens_per_second), 'tokens/s; ' + rate(t.requests_per_second) + ' requests/s');
    this.tile('First token', t.time_to_first_token_ms ? milliseconds(t.time_to_first_token_ms.p50) : unknown, t.time_to_first_token_ms ? 'p99 ' + milliseconds(t.time_to_first_token_ms.p99) : 'p50');
    this.tile('Inter-token', t.inter_token_ms ? milliseconds(t.inter_token_ms.p50) : unknown, t.inter_token_ms ? 'p99 ' + milliseconds(t.inter_token_ms.p99) : 'p50');
    this.tile('Failed', count(t.failures_total), 'of ' + count(t.attempts_total) + ' attempts; ' + count(t.busy_total) + ' busy');
    this.plots[0].draw(this.series, count(t.prefill_tokens) + ' queued, ' + count(t.decode_tokens) + ' running');
    this.plots[1].draw(this.series, rate(t.generated_tokens_per_second));
    this.plots[2].draw(this.series, percent(t.hit_rate === null ? NaN : t.hit_rate));
    const first = t.time_to_first_token_ms;
    this.plots[3].draw(this.series, first ? 'p50 ' + milliseconds(first.p50) + ', p99 ' + milliseconds(first.p99) : unknown);
  }
}
