// SPDX-License-Identifier: Apache-2.0

// The stream of snapshots. Of all visible tabs of a browser one holds the stream, by
// a lock, and passes its events on to the others; a hidden tab holds nothing. Where
// there are no locks (a site without TLS), each visible tab has a stream of its own.

const patience = 4000; // milliseconds without an event, then the connection counts as lost
const again = 2000; // milliseconds before a refused stream is asked for again

class Stream {
  // take gets events by name and data; lost is told when nothing comes any more.
  constructor(take, lost) {
    this.take = take;
    this.lost = lost;
    this.heard = 0; // when an event came last
    this.open = false; // the tab is visible and not left
    document.addEventListener('visibilitychange', () => this.turn(document.visibilityState === 'visible'));
    addEventListener('pagehide', () => this.turn(false));
    addEventListener('pageshow', () => this.turn(document.visibilityState === 'visible'));
    setInterval(() => this.watch(), 1000);
    this.turn(document.visibilityState === 'visible');
  }

  turn(open) {
    if (open === this.open) {
      return;
    }
    this.open = open;
    if (open) {
      this.begin();
    } else {
      this.end();
    }
  }

  begin() {
    this.heard = Date.now();
    if (!navigator.locks || !self.BroadcastChannel) {
      this.connect();
      return;
    }
    const name = 'kv_aware ' + location.pathname;
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = (message) => this.got(message.data.name, message.data.text);
    const leaving = new AbortController();
    this.leaving = leaving;
    navigator.locks.request(name, { signal: leaving.signal }, () => new Promise((release) => {
      if (leaving.signal.aborted) {
        release();
        return;
      }
      this.release = release;
      this.connect();
    })).catch(() => {}); // it left before its turn came
    setTimeout(() => {
      if (!this.source) {
        this.catchUp(); // the tab with the stream was given the history before
      }
    }, 300);
  }

  // catchUp asks for a snapshot with its history.
  async catchUp() {
    try {
      const answer = await fetch('?snapshot', { cache: 'no-store' });
      if (answer.ok && this.open) {
        this.got('snapshot', await answer.text());
      }
    } catch {
      // The stream will tell.
    }
  }

  connect() {
    const source = new EventSource('?stream');
    this.source = source;
    for (const name of ['snapshot', 'trouble']) {
      source.addEventListener(name, (event) => {
        this.got(name, event.data);
        if (this.channel) {
          this.channel.postMessage({ name, text: event.data });
        }
      });
    }
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.source = null;
        this.retry = setTimeout(() => this.connect(), again); // it was refused: the browser does not try again
      }
    };
  }

  end() {
    clearTimeout(this.retry);
    if (this.source) {
      this.source.close();
      this.source = null;
    }
    if (this.channel) {
      this.channel.close();
      this.channel = null;
    }
    if (this.release) {
      this.release();
      this.release = null;
    }
    if (this.leaving) {
      this.leaving.abort();
      this.leaving = null;
    }
  }

  got(name, text) {
    this.heard = Date.now();
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      return; // not ours
    }
    this.take(name, data);
  }

  watch() {
    if (this.open && Date.now() - this.heard > patience) {
      this.lost(Math.round((Date.now() - this.heard) / 1000));
    }
  }
}
