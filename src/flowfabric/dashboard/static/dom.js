// Elements without a framework. Data only ever becomes text: nothing here parses markup.
const SVG = "http://www.w3.org/2000/svg";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.assign(element.style, value);
    else if (name in element && !element.namespaceURI.endsWith("svg") && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element: h("a", { href }, "text", child). */
export function h(tag, props, ...children) {
  const names = { class: "className", for: "htmlFor", tabindex: "tabIndex", colspan: "colSpan" };
  const given = Object.fromEntries(
    Object.entries(props ?? {}).map(([name, value]) => [names[name] ?? name, value]),
  );
  return build(document.createElement(tag), given, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

/** Shows `children` in `target`. What is there already stays and is only changed where it differs:
    a live page keeps focus, text selection, scroll positions and open details, and a click that
    began before news came still hits its button. */
export function render(target, ...children) {
  const focused = target.contains(document.activeElement);
  const next = document.createDocumentFragment();
  append(next, children);
  patchChildren(target, next);
  if (focused && document.activeElement === document.body) byId("main").focus({ preventScroll: true });
}

/** Puts another page in `target`. If the focus was on a field or button that the new page has as
    well, it stays there; if it was on something else of the old page, it goes to the new one. */
export function mount(target, element) {
  const focused = document.activeElement;
  const inside = target.contains(focused);
  const key = inside ? focused.dataset?.key : null;
  const caret = inside ? focused.selectionStart ?? null : null;
  target.replaceChildren(element);
  if (!inside) return;
  const again = key ? target.querySelector(`[data-key="${CSS.escape(key)}"]`) : null;
  (again ?? target).focus({ preventScroll: true });
  if (again?.setSelectionRange && caret !== null) again.setSelectionRange(caret, caret);
}

const HANDLERS = ["onclick", "onchange", "onsubmit"];
const OWN = new Set(["open", "disabled", "style"]); // what people and running actions have changed

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const matches = (old, next) => old.nodeName === next.nodeName && keyOf(old) === keyOf(next);

function patchChildren(target, next) {
  const keyed = new Map([...target.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = target.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    const found = key === null ? at : keyed.get(key);
    keyed.delete(key);
    if (!found || !matches(found, wanted)) {
      target.insertBefore(wanted, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else target.insertBefore(found, at);
    patch(found, wanted);
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!OWN.has(name) && !next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (!OWN.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
  for (const name of HANDLERS) old[name] = next[name];
  if (old.type === "checkbox") old.checked = next.checked;
  patchChildren(old, next);
}

export const byId = (id) => document.getElementById(id);

/** Says something to people who do not see the page. */
export function announce(text) {
  byId("announce").textContent = text;
}
