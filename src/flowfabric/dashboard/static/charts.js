// Small charts, drawn by hand.
import { h, s } from "./dom.js";
import { number, serverNow } from "./format.js";

const HEIGHT = 150;
const LEFT = 34;
const BOTTOM = 18;

/** Stacked bars of what ended in each span of time. */
export function throughput(spans) {
  const WIDTH = Math.min(800, innerWidth - 50); // on a narrow screen as wide as its card, so that text keeps its size
  const totals = spans.map((span) => span.completed + span.failed + span.cancelled);
  const top = nice(Math.max(1, ...totals));
  const step = (WIDTH - LEFT) / Math.max(1, spans.length);
  const high = (value) => ((HEIGHT - BOTTOM - 8) * value) / top;
  const bars = spans.flatMap((span, place) => {
    let base = HEIGHT - BOTTOM;
    return [["b-ok", span.completed], ["b-fail", span.failed], ["b-stop", span.cancelled]]
      .filter(([, value]) => value)
      .map(([className, value]) => {
        base -= high(value);
        return s("rect", { class: className, x: LEFT + place * step + 0.5, y: base, width: Math.max(1, step - 1.5), height: high(value), rx: 1 });
      });
  });
  const lines = [0, top / 2, top].map((value) => {
    const y = HEIGHT - BOTTOM - high(value);
    return [s("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
      s("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, number(value))];
  });
  const labels = [0, 0.5, 1].map((share) => {
    const place = Math.min(spans.length - 1, Math.round((spans.length - 1) * share));
    const minutes = spans.length ? (serverNow() - spans[place].at) / 60000 : 0;
    const text = share === 1 ? "now" : `${Math.round(minutes * 2) / 2} min ago`;
    return s("text", { x: LEFT + (WIDTH - LEFT) * share, y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][share * 2] }, text);
  });
  const ended = totals.reduce((sum, each) => sum + each, 0);
  const failed = spans.reduce((sum, span) => sum + span.failed, 0);
  return s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${number(ended)} runs ended in the last five minutes, ${number(failed)} of them failed` },
    lines, bars, labels);
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const found = [1, 2, 4, 5, 10].find((each) => each * power >= value) * power;
  return Math.max(2, found);
}

export function legend(unit) {
  return h("div", { class: "legend" },
    h("span", {}, h("i", { class: "l-ok" }), "completed"),
    h("span", {}, h("i", { class: "l-fail" }), "failed"),
    h("span", {}, h("i", { class: "l-stop" }), "cancelled"),
    h("span", { class: "unit" }, unit));
}

/** A bar that is filled by a share of 0 to 1. */
export function meter(share, label, tone = "") {
  const filled = Math.max(0, Math.min(1, share || 0));
  return h("div", { class: "bar", role: "img", "aria-label": label },
    h("i", { "data-tone": tone, style: { width: `${filled * 100}%` } }));
}

/** How much of a limit is used. */
export function gauge(label, taken, limit, { soft, full = "fail" } = {}) {
  const share = limit ? taken / limit : 0;
  const tone = share >= 1 ? full : (soft && taken >= soft) || share >= 0.8 ? "delay" : "ok";
  const of = limit === null || limit === undefined ? "no limit" : `of ${number(limit)}`;
  const text = `${number(taken)} ${of}${soft ? `, soft limit ${number(soft)}` : ""}`;
  return h("div", { class: "gauge" },
    h("div", { class: "gauge-top" }, h("span", {}, label), h("span", { class: "muted num" }, text)),
    limit === null || limit === undefined ? null : meter(share, `${label}: ${text}`, tone));
}
