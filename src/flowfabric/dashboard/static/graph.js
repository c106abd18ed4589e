// A directed graph in layers: where each node goes, and how the picture is moved and zoomed.
import { h, s } from "./dom.js";
import { tone, word } from "./format.js";

const NODE = { width: 190, height: 46, gapX: 70, gapY: 16 };
const SWEEPS = 4;
const PHONE = 640;
const READABLE = 0.7; // pixels for each unit of the drawing, at least, when a phone shows it first
const NAMES = new Intl.Collator("en", { numeric: true });
let drawings = 0;

/** Places nodes in layers by their longest path from a root; neighbours are kept close. */
export function layout(ids, edges) {
  const after = new Map(ids.map((id) => [id, []]));
  const before = new Map(ids.map((id) => [id, []]));
  for (const [from, to] of edges) {
    if (!after.has(from) || !before.has(to)) continue;
    after.get(from).push(to);
    before.get(to).push(from);
  }
  const layer = new Map();
  const left = new Map(ids.map((id) => [id, before.get(id).length]));
  const ready = ids.filter((id) => !left.get(id));
  for (const id of ready) layer.set(id, 0);
  while (ready.length) {
    const id = ready.shift();
    for (const next of after.get(id)) {
      layer.set(next, Math.max(layer.get(next) ?? 0, layer.get(id) + 1));
      left.set(next, left.get(next) - 1);
      if (!left.get(next)) ready.push(next);
    }
  }
  const layers = [];
  for (const id of ids) (layers[layer.get(id) ?? 0] ??= []).push(id);
  order(layers, before, after);
  return positions(layers);
}

function order(layers, before, after) {
  const place = new Map();
  const note = (row) => row.forEach((id, n) => place.set(id, row.length > 1 ? n / (row.length - 1) : 0.5));
  layers.forEach(note);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    const near = down ? before : after;
    for (const row of down ? layers : [...layers].reverse()) {
      const mean = (id) => {
        const around = near.get(id);
        return around.length ? around.reduce((sum, each) => sum + place.get(each), 0) / around.length : place.get(id);
      };
      const wanted = new Map(row.map((id) => [id, mean(id)]));
      row.sort((a, b) => wanted.get(a) - wanted.get(b));
      note(row);
    }
  }
}

/** A layer with many nodes becomes several columns, so that the picture stays readable. */
function positions(layers) {
  const total = layers.reduce((sum, row) => sum + row.length, 0);
  const most = Math.max(8, Math.ceil(Math.sqrt(total) * 1.4));
  const stepY = NODE.height + NODE.gapY;
  const spots = new Map();
  let x = 0;
  let height = 0;
  const columns = [];
  for (const row of layers) {
    const parts = Math.ceil(row.length / most);
    const size = Math.ceil(row.length / parts);
    for (let n = 0; n < parts; n += 1) columns.push([row.slice(n * size, (n + 1) * size), n === parts - 1]);
  }
  for (const [row] of columns) height = Math.max(height, row.length * stepY - NODE.gapY);
  for (const [row, last] of columns) {
    const top = (height - (row.length * stepY - NODE.gapY)) / 2;
    row.forEach((id, n) => spots.set(id, { x, y: top + n * stepY }));
    x += NODE.width + (last ? NODE.gapX : NODE.gapX / 3);
  }
  return { spots, width: x - NODE.gapX, height };
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** The drawing. `update(members, edges)` only changes colours and words. */
export class Graph {
  constructor(members, edges) {
    const ids = members.toSorted((a, b) => NAMES.compare(a.name, b.name)).map((member) => member.id);
    const drawn = layout(ids, edges.map((edge) => [edge.from, edge.to]));
    this.size = { width: drawn.width + 40, height: drawn.height + 40 };
    this.nodes = new Map();
    this.lines = new Map();
    const lines = edges.map((edge) => this.line(edge, drawn.spots)).filter(Boolean);
    const spot = (member) => drawn.spots.get(member.id);
    this.order = members.toSorted((a, b) => spot(a).x - spot(b).x || spot(a).y - spot(b).y).map((member) => member.id);
    const known = new Map(members.map((member) => [member.id, member]));
    const boxes = this.order.map((id) => this.box(known.get(id), drawn.spots.get(id)));
    this.svg = s("svg", { role: "group", "aria-label": "Graph of the flow", tabindex: "0" },
      s("g", {}, lines), s("g", {}, boxes));
    const key = `graph-${drawings += 1}`;
    this.element = h("div", { class: "graph", "data-key": key }, this.svg);
    this.tools = h("div", { class: "graph-tools", "data-key": `${key}-tools` },
      h("button", { type: "button", class: "tiny", "aria-label": "Zoom in", onclick: () => this.zoom(1 / 1.3) }, "+"),
      h("button", { type: "button", class: "tiny", "aria-label": "Zoom out", onclick: () => this.zoom(1.3) }, "−"),
      h("button", { type: "button", class: "tiny", onclick: () => this.fit() }, "Fit"));
    this.listen();
    this.fit();
    if (innerWidth < PHONE) this.view.w = Math.min(this.view.w, innerWidth / READABLE);
    this.element.style.aspectRatio = `${this.view.w} / ${this.view.h}`;
    this.apply();
  }

  box(member, spot) {
    const { width, height } = NODE;
    const state = s("text", { x: 14, y: 35 });
    const node = s("a", { class: "node", href: `#/executions/${member.uuid}`, transform: `translate(${spot.x} ${spot.y})` },
      s("rect", { class: "box", width, height, rx: 8 }), s("rect", { class: "stripe", width: 5, height, rx: 2 }),
      s("text", { class: "title", x: 14, y: 19 }, cut(member.name, 24)), state, s("title", {}, member.name));
    node.addEventListener("focus", () => this.show(spot));
    this.nodes.set(member.id, { node, state });
    this.mark(member);
    return node;
  }

  line(edge, spots) {
    const from = spots.get(edge.from);
    const to = spots.get(edge.to);
    if (!from || !to) return null;
    const x1 = from.x + NODE.width;
    const y1 = from.y + NODE.height / 2;
    const y2 = to.y + NODE.height / 2;
    const bend = Math.max(24, (to.x - x1) / 2);
    const path = s("path", { class: "edge", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${to.x - bend} ${y2} ${to.x} ${y2}` });
    this.lines.set(edge.id, path);
    this.paint(edge);
    return path;
  }

  mark(member) {
    const { node, state } = this.nodes.get(member.id);
    node.setAttribute("data-tone", tone(member.state));
    node.setAttribute("aria-label", `${member.name}, ${word(member.state)}`);
    state.textContent = word(member.state) + (member.kind !== member.name ? ` · ${cut(member.kind, 16)}` : "");
  }

  paint(edge) {
    const path = this.lines.get(edge.id);
    if (!path) return;
    if (edge.done === null) path.removeAttribute("data-done");
    else path.setAttribute("data-done", edge.done ? "1" : "0");
  }

  update(members, edges) {
    for (const member of members) if (this.nodes.has(member.id)) this.mark(member);
    for (const edge of edges) this.paint(edge);
  }

  /** Whether it has these nodes and edges; a flow that grew is drawn again. */
  shows(members, edges) {
    return members.length === this.nodes.size && edges.length === this.lines.size && members.every((member) => this.nodes.has(member.id));
  }

  // -- moving and zooming

  fit() {
    this.view = { x: -20, y: -20, w: Math.max(this.size.width, 420), h: Math.max(this.size.height, 200) };
    this.apply();
  }

  zoom(factor, at = { x: this.view.x + this.view.w / 2, y: this.view.y + this.view.h / 2 }) {
    const { view } = this;
    const w = Math.max(200, Math.min(this.size.width * 3 + 800, view.w * factor));
    const real = w / view.w;
    this.view = { x: at.x - (at.x - view.x) * real, y: at.y - (at.y - view.y) * real, w, h: view.h * real };
    this.apply();
  }

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.apply();
  }

  /** Moves so that a node that has the focus can be seen. */
  show(spot) {
    const { view } = this;
    const inside = spot.x > view.x && spot.y > view.y && spot.x + NODE.width < view.x + view.w && spot.y + NODE.height < view.y + view.h;
    if (!inside) this.pan(spot.x + NODE.width / 2 - view.x - view.w / 2, spot.y - view.y - view.h / 2);
  }

  apply() {
    const { x, y, w, h: high } = this.view;
    this.svg.setAttribute("viewBox", `${x} ${y} ${w} ${high}`);
  }

  scale() {
    const box = this.svg.getBoundingClientRect();
    return Math.max(this.view.w / Math.max(1, box.width), this.view.h / Math.max(1, box.height));
  }

  listen() {
    const { svg } = this;
    let from = null;
    let moved = false;
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      this.zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, point);
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => { from = { x: event.clientX, y: event.clientY }; moved = false; });
    svg.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      const scale = this.scale();
      if (Math.abs(event.clientX - from.x) + Math.abs(event.clientY - from.y) > 3) moved = true;
      this.pan((from.x - event.clientX) * scale, (from.y - event.clientY) * scale);
      from = { x: event.clientX, y: event.clientY };
    });
    addEventListener("pointerup", () => { from = null; });
    svg.addEventListener("click", (event) => { if (moved) event.preventDefault(); }, true);
    svg.addEventListener("dragstart", (event) => event.preventDefault());
    svg.addEventListener("keydown", (event) => {
      const step = this.view.w / 10;
      const keys = { ArrowLeft: () => this.pan(-step, 0), ArrowRight: () => this.pan(step, 0), ArrowUp: () => this.pan(0, -step), ArrowDown: () => this.pan(0, step), "+": () => this.zoom(1 / 1.3), "-": () => this.zoom(1.3), 0: () => this.fit() };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}
