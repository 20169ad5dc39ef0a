// SPDX-License-Identifier: Apache-2.0

// How elements are made and changed. What comes from outside is only ever set as
// text, and only where it changed: a screen reader's place in the page stays.

function byId(id) {
  return document.getElementById(id);
}

// make gives an element with attributes, and children that are elements or text.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const svgSpace = 'http://www.w3.org/2000/svg';

function makeSVG(name, attributes, ...children) {
  const element = document.createElementNS(svgSpace, name);
  for (const [key, value] of Object.entries(attributes || {})) {
    element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function show(element, shown) {
  if (element.hidden === shown) {
    element.hidden = !shown;
  }
}

function stretch(element, share) {
  const width = (100 * Math.min(1, Math.max(0, share || 0))).toFixed(2) + '%';
  if (element.style.width !== width) {
    element.style.width = width;
  }
}

// makeBar gives a bar of parts, which are classes, with figures below it.
function makeBar(...parts) {
  const spans = parts.map((part) => make('span', { class: part }));
  const left = make('span');
  const right = make('span');
  const bar = make('div', { class: 'bar', 'aria-hidden': 'true' }, ...spans);
  return {
    element: make('div', {}, bar, make('div', { class: 'under' }, left, right)),
    // set takes the parts' shares of the bar, and the figures.
    set(shares, leftText, rightText) {
      shares.forEach((share, i) => stretch(spans[i], share));
      say(left, leftText);
      say(right, rightText);
    },
  };
}

// arrange puts elements into a parent in the given order, moving as few as it can:
// one that is moved loses the focus.
function arrange(parent, elements) {
  const wanted = new Set(elements);
  for (const element of [...parent.children]) {
    if (!wanted.has(element)) {
      element.remove();
    }
  }
  let at = parent.firstElementChild;
  for (const element of elements) {
    if (element === at) {
      at = at.nextElementSibling;
    } else {
      parent.insertBefore(element, at);
    }
  }
}
