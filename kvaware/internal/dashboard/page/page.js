// SPDX-License-Identifier: Apache-2.0

// The page: takes the stream's events apart and hands them on.

const page = {
  totals: new Totals(),
  upstreams: new Upstreams(),
  decisions: new Decisions(),
  pool: null, // the name of the one that is shown
  process: null,
  paused: false,
};

function state(text, kind) {
  say(byId('state'), text);
  byId('state').className = 'state ' + kind;
}

function notice(text) {
  say(byId('notice'), text);
  show(byId('notice'), text !== '');
}

function forget() {
  page.totals.forget();
  page.upstreams.forget();
  page.decisions.forget();
}

// choosePool gives the pool to show, and keeps the choice up to date.
function choosePool(pools) {
  const choice = byId('pool');
  const offered = pools.map((pool) => pool.pool);
  const shown = [...choice.options].map((option) => option.value);
  if (offered.join('\n') !== shown.join('\n')) {
    choice.replaceChildren(...offered.map((name) => make('option', { value: name }, name || '(without a name)')));
  }
  show(byId('pool-choice'), offered.length > 1);
  if (!offered.includes(page.pool)) {
    page.pool = offered.length ? offered[0] : null;
    forget();
  }
  if (page.pool !== null) {
    choice.value = page.pool;
  }
  return pools.find((pool) => pool.pool === page.pool);
}

function takeSnapshot(snapshot) {
  if (page.process !== null && page.process !== snapshot.process) {
    forget(); // another process, which knows nothing of what was
  }
  page.process = snapshot.process;
  state(page.paused ? 'Paused' : 'Live', page.paused ? '' : 'live');
  page.last = snapshot;
  if (!page.paused) {
    draw(snapshot);
  }
}

function draw(snapshot) {
  const pool = choosePool(snapshot.pools);
  if (!pool) {
    notice('No running configuration has a proxy with lb_policy kv_aware.');
    return;
  }
  notice(pool.totals.attempts_total === 0 && pool.totals.requests === 0 ? 'Nothing has been routed yet. Figures come with the first request.' : '');
  const time = Date.parse(snapshot.time);
  page.totals.update(pool, time);
  page.upstreams.update(pool, time, pool.upstreams.length < pool.upstreams_total);
  page.decisions.update(pool);
}

byId('pool').addEventListener('change', () => {
  page.pool = byId('pool').value;
  forget();
  if (page.last) {
    draw(page.last);
  }
  stream.catchUp();
});

byId('pause').addEventListener('click', () => {
  page.paused = !page.paused;
  byId('pause').setAttribute('aria-pressed', String(page.paused));
  state(page.paused ? 'Paused' : 'Live', page.paused ? '' : 'live');
  if (!page.paused && page.last) {
    draw(page.last);
  }
});

new Explain(() => page.pool);
const stream = new Stream((name, data) => {
  if (name === 'snapshot') {
    takeSnapshot(data);
  } else {
    state('Caddy does not answer', 'lost');
    notice(String(data.error));
  }
}, (seconds) => state(`Connection lost ${seconds}\u202fs ago; trying again`, 'lost'));
