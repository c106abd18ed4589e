// Elements without a framework. Data only ever becomes text: nothing here parses markup.
const SVG = "http://www.w3.org/2000/svg";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
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

/** Replaces what is in `target`. The element that has the focus keeps it if the new content has one
    with the same data-key, so that a live page does not throw people out. */
export function render(target, ...children) {
  const focused = target.contains(document.activeElement) ? document.activeElement : null;
  const key = focused?.dataset?.key;
  const caret = focused?.selectionStart;
  target.replaceChildren();
  append(target, children);
  if (!key) return;
  const again = target.querySelector(`[data-key="${CSS.escape(key)}"]`);
  again?.focus({ preventScroll: true });
  if (again && caret !== undefined && caret !== null && again.setSelectionRange) {
    again.setSelectionRange(caret, caret);
  }
}

export const byId = (id) => document.getElementById(id);

/** Says something to people who do not see the page. */
export function announce(text) {
  byId("announce").textContent = text;
}
