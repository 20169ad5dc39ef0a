// SPDX-License-Identifier: Apache-2.0
'use strict';

// How figures are worded. The language is English, so numbers are too.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const unknown = '–';

function count(n) {
  return Number.isFinite(n) ? (Math.abs(n) < 10000 ? whole.format(n) : short.format(n)) : unknown;
}

function rate(n) {
  return Number.isFinite(n) ? (n > 0 && n < 10 ? n.toFixed(1) : count(n)) : unknown;
}

function percent(share) {
  return Number.isFinite(share) ? (share > 0 && share < 0.095 ? (100 * share).toFixed(1) : (100 * share).toFixed(0)) + '\u202f%' : unknown;
}

// milliseconds words a time with the unit that suits it.
function milliseconds(ms) {
  if (!Number.isFinite(ms)) {
    return unknown;
  }
  if (ms < 10) {
    return ms.toFixed(1) + '\u202fms';
  }
  return ms < 1000 ? ms.toFixed(0) + '\u202fms' : (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + '\u202fs';
}

function percentiles(p) {
  return p ? milliseconds(p.p50) + ' / ' + milliseconds(p.p99) : unknown;
}

// cost words what an objective makes least, which has no unit that says much.
function cost(c) {
  if (c === null || !Number.isFinite(c)) {
    return unknown;
  }
  return c >= 1000 ? count(c) : c.toPrecision(3);
}

function clock(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? unknown : date.toLocaleTimeString('en-GB');
}

function plural(n, noun) {
  return count(n) + ' ' + noun + (n === 1 ? '' : 's');
}
