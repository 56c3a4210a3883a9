// Elements from plain values. Text becomes text nodes only: names from users are never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("button", {class: "primary", onclick: f}, "Apply")`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace all children of an element. */
export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const signs = new WeakMap();

/** Replace children only when `sign` changed: a button about to be pressed stays in place. */
export function keep(element, sign, make) {
  const wanted = JSON.stringify(sign);
  if (signs.get(element) === wanted) return;
  signs.set(element, wanted);
  show(element, make());
}

/**
 * Make an element's children equal to these and change only what differs: what is focused, selected
 * or about to be pressed stays in place. For parts without listeners of their own.
 */
export function renew(element, ...children) {
  alike(element, [...h("div", {}, ...children).childNodes]);
}

function alike(element, wanted) {
  wanted.forEach((fresh, i) => {
    const there = element.childNodes[i];
    if (!there) element.append(fresh);
    else if (there.isEqualNode(fresh)) return;
    else if (fresh.cloneNode().isEqualNode(there.cloneNode())) alike(there, [...fresh.childNodes]);
    else there.replaceWith(fresh);
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
}

/** Set an element's text; the document changes only if the text does. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}
