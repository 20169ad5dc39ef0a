// SPDX-License-Identifier: Apache-2.0

// Small plots over time. They are pictures for the eye: what they show last stands
// beside them as text.

const longest = 5 * 60 * 1000; // milliseconds that a plot shows at most,
const shortest = 60 * 1000; // and at least
const plotWidth = 300;
const plotHeight = 60;

// Series are columns of values over one list of times, oldest first.
class Series {
  constructor(names) {
    this.names = names;
    this.times = [];
    this.columns = Object.fromEntries(names.map((name) => [name, []]));
  }

  // load takes a history that ends at its last time.
  load(times, columns) {
    this.times = times.slice();
    for (const name of this.names) {
      const column = columns[name] || [];
      const missing = Math.max(0, times.length - column.length);
      this.columns[name] = new Array(missing).fill(null).concat(column.slice(-times.length || column.length));
    }
  }

  add(time, values) {
    const last = this.times[this.times.length - 1];
    if (last !== undefined && time <= last) {
      return;
    }
    this.times.push(time);
    for (const name of this.names) {
      const value = values[name];
      this.columns[name].push(Number.isFinite(value) ? value : null);
    }
    let old = 0;
    while (old < this.times.length && this.times[old] < time - longest) {
      old++;
    }
    if (old > 0) {
      this.times.splice(0, old);
      for (const name of this.names) {
        this.columns[name].splice(0, old);
      }
    }
  }

  // span is how many milliseconds a plot of it shows.
  span() {
    const known = this.times.length ? this.times[this.times.length - 1] - this.times[0] : 0;
    return Math.min(longest, Math.max(shortest, known));
  }

  max(names) {
    let most = 0;
    for (const name of names) {
      for (const value of this.columns[name]) {
        most = Math.max(most, value || 0);
      }
    }
    return most;
  }
}

// drawLine gives the path of a column, with gaps where there is nothing.
function drawLine(series, column, most) {
  const end = series.times[series.times.length - 1];
  const span = series.span();
  let path = '';
  let pen = 'M';
  series.times.forEach((time, i) => {
    const value = column[i];
    if (value === null || value === undefined) {
      pen = 'M';
      return;
    }
    path += pen + x(time, end, span) + ' ' + y(value, most);
    pen = 'L';
  });
  return path;
}

function x(time, end, span) {
  return (plotWidth * Math.max(0, 1 - (end - time) / span)).toFixed(1);
}

function y(value, most) {
  return (plotHeight - 1 - (plotHeight - 3) * Math.min(1, most > 0 ? value / most : 0)).toFixed(1);
}

// drawArea fills between two columns.
function drawArea(series, lower, upper, most) {
  const end = series.times[series.times.length - 1];
  const span = series.span();
  let there = '';
  let back = '';
  series.times.forEach((time, i) => {
    if (upper[i] === null || upper[i] === undefined) {
      return;
    }
    there += (there ? 'L' : 'M') + x(time, end, span) + ' ' + y(upper[i], most);
    back = 'L' + x(time, end, span) + ' ' + y(lower ? lower[i] || 0 : 0, most) + back;
  });
  return there && there + back + 'Z';
}

// Stack draws two columns on top of each other into a picture.
class Stack {
  constructor(attributes) {
    this.lower = makeSVG('path', { class: 'area decode' });
    this.upper = makeSVG('path', { class: 'area prefill' });
    this.element = makeSVG('svg', { viewBox: `0 0 ${plotWidth} ${plotHeight}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', ...attributes }, this.lower, this.upper);
  }

  draw(series, most) {
    const decode = series.columns.decode_tokens;
    const sum = decode.map((value, i) => (value === null ? null : value + (series.columns.prefill_tokens[i] || 0)));
    const highest = most || Math.max(1, ...sum);
    this.lower.setAttribute('d', drawArea(series, null, decode, highest));
    this.upper.setAttribute('d', drawArea(series, decode, sum, highest));
    return highest;
  }
}

// Plot is a figure with a caption, its last value, and lines or a stack.
class Plot {
  constructor(title, lines, format) {
    this.lines = lines;
    this.format = format;
    this.now = make('b', {}, unknown);
    this.top = make('span', {});
    this.since = make('span', {});
    this.paths = lines.map((line) => makeSVG('path', { class: 'line ' + line.ink }));
    this.stack = lines.length ? null : new Stack({ class: 'plot' });
    this.picture = this.stack ? this.stack.element
      : makeSVG('svg', { class: 'plot', viewBox: `0 0 ${plotWidth} ${plotHeight}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, ...this.paths);
    this.element = make('figure', {},
      make('figcaption', {}, make('span', {}, title), this.now), this.picture,
      make('div', { class: 'axis', 'aria-hidden': 'true' }, this.since, this.top, make('span', {}, 'now')));
  }

  draw(series, text) {
    say(this.now, text);
    if (series.times.length < 2) {
      return;
    }
    const minutes = Math.round(series.span() / 60000);
    say(this.since, minutes + ' min ago');
    let most;
    if (this.stack) {
      most = this.stack.draw(series);
    } else {
      most = this.lines[0].most || series.max(this.lines.map((line) => line.name));
      this.lines.forEach((line, i) => this.paths[i].setAttribute('d', drawLine(series, series.columns[line.name], most)));
    }
    say(this.top, most > 0 ? 'top: ' + this.format(most) : '');
  }
}
