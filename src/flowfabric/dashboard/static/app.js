// The shell: who is there, which page, what is new.
import { allowAge, get, maybe, onConnection, space, token } from "./api.js";
import { announce, byId, h, mount, render } from "./dom.js";
import { Live } from "./live.js";
import { explain } from "./ui.js";
import { overview } from "./page_overview.js";
import { executions } from "./page_executions.js";
import { execution } from "./page_execution.js";
import { flows } from "./page_flows.js";
import { flow } from "./page_flow.js";
import { inbox } from "./page_inbox.js";
import { schedules } from "./page_schedules.js";
import { lanes } from "./page_lanes.js";
import { workers } from "./page_workers.js";
import { limits } from "./page_limits.js";

const PAGES = [
  ["", "Overview", overview], ["executions", "Runs", executions], ["flows", "Flows", flows],
  ["inbox", "Inbox", inbox], ["schedules", "Schedules", schedules], ["lanes", "Lanes", lanes],
  ["workers", "Workers", workers], ["limits", "Limits", limits],
];
const DEEPER = { executions: execution, flows: flow };
const THINGS = { executions: "run", flows: "flow" };
const LEAST = 1000; // a page reads again at most once a second
const AGE = 2; // seconds that an answer after news may be old
const AFTERWARDS = 3000; // and so long after the last news the page reads once more

let me = null;
let shown = null; // the page on the screen
let visit = 0;
let timer = null;
let last = null;
let readAt = 0;
let freshAt = 0; // when the page last read an answer that was not shared
let reading = null; // the read that is under way, and of which visit

const can = (scope) => me !== null && me.scopes.includes(scope);
const everywhere = () => me !== null && me.namespaces === null;

function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { name: name ?? "", rest, query: new URLSearchParams(search) };
}

async function open() {
  if (location.hash === "#main") return byId("main").focus();
  const { name, rest, query } = route();
  const found = PAGES.find(([path]) => path === name);
  markNav(name);
  visit += 1;
  shown?.close?.();
  shown = null;
  if (!found) return nowhere(name);
  const make = rest.length && DEEPER[name] ? DEEPER[name] : found[2];
  const context = { rest, query, can, everywhere, refresh: () => refresh(true), live };
  shown = make(context);
  document.title = `${shown.title} · FlowFabric`;
  mount(byId("main"), shown.element);
  announce(shown.title);
  scrollTo(0, 0);
  await refresh(true);
}

function nowhere(name) {
  document.title = "No such page · FlowFabric";
  message("There is no such page", `This dashboard has no page “${name}”. The pages are above.`);
}

function markNav(current) {
  for (const link of byId("nav").children) {
    if (link.dataset.page !== current) link.removeAttribute("aria-current");
    else {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a narrow screen the pages scroll
    }
  }
}

/** Reads the page again, at most once a second; news in between wait for their turn. One read follows
    the other, so that an older answer is never shown after a newer one. */
async function refresh(atOnce = false) {
  if (!shown || me === null) return;
  const rest = (shown.every ?? LEAST) - (Date.now() - readAt);
  if (!atOnce && (isReading() || rest > 0)) {
    timer ??= setTimeout(() => { timer = null; refresh(); }, Math.max(50, rest));
    return;
  }
  const mine = visit;
  while (isReading()) await reading.done;
  if (mine !== visit || !shown) return;
  const own = { visit, done: read(mine, atOnce) };
  reading = own;
  await own.done;
  if (reading === own) reading = null;
}

const isReading = () => reading?.visit === visit;

async function read(mine, atOnce) {
  readAt = Date.now();
  const sinceFresh = Math.floor((readAt - freshAt) / 1000);
  allowAge(atOnce ? 0 : Math.min(shown.age ?? AGE, sinceFresh)); // never older than what was shown
  if (atOnce) freshAt = readAt;
  clearTimeout(last);
  if (!atOnce) last = setTimeout(() => refresh(true), AFTERWARDS);
  try {
    await shown.refresh();
    if (mine === visit && !shown.element.isConnected) mount(byId("main"), shown.element); // after an error
  } catch (error) {
    if (mine === visit && error.name !== "AbortError" && error.status !== 401) problem(error);
  } finally {
    readAt = Date.now();
  }
}

function problem(error) {
  if (error.status === 0) return; // the banner says so
  const { name, rest } = route();
  const thing = THINGS[name] ?? "page";
  if (error.status === 404 || (error.code === "invalid_id" && rest.length)) {
    return message(`There is no such ${thing}`, `${rest[0] ?? name} is not known here. Its id may be mistyped, or the ${thing} was deleted after its retention.`, THINGS[name] ? name : "");
  }
  const title = error.status === 403 ? "Not for your access token" : "This could not be read";
  return message(title, explain(error), "", h("button", { type: "button", onclick: open }, "Try again"));
}

/** Instead of a page: what is wrong, and where to go on. */
function message(title, text, path = "", ...more) {
  const there = PAGES.find(([each]) => each === path);
  if (byId("main").firstChild?.dataset?.text === text) return; // it says so already
  mount(byId("main"), h("div", { class: "card empty", "data-text": text }, h("h1", {}, title), h("p", {}, text),
    h("p", { class: "actions" }, more, h("a", { class: "button", href: `#/${path}` }, there[1]))));
}

const live = new Live((event) => {
  if (!shown?.wants || event === null || shown.wants(event)) refresh();
}, (state) => {
  const words = { live: "live", polling: "live", lost: "not connected" };
  byId("live").dataset.state = state;
  byId("live").textContent = words[state];
  if (state === "lost") lost();
  else reached();
});

function lost() {
  const banner = byId("banner");
  if (!banner.hidden) return;
  banner.hidden = false;
  render(banner, h("span", {}, "The connection to the server is lost. What you see may be old; trying again…"),
    h("button", { type: "button", class: "tiny", onclick: () => live.restart() }, "Try now"));
}

function reached() {
  byId("banner").hidden = true;
}

onConnection({ down: lost, up: reached, unauthorised: () => signIn(true) });

function signIn(refused) {
  me = null;
  live.stop();
  byId("live").textContent = "";
  shown?.close?.();
  shown = null;
  render(byId("who"));
  byId("nav").replaceChildren();
  const wrong = refused && token.get();
  token.clear();
  const input = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: false });
  document.title = "Sign in · FlowFabric";
  mount(byId("main"), h("section", { class: "card signin" }, h("div", { class: "card-body" }, h("form", { onsubmit: (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    start();
  } },
    h("h1", {}, "Access token"),
    h("p", { class: "muted" }, "This server asks who you are. The token stays in this tab until you close it."),
    wrong ? h("p", { class: "problem", role: "alert" }, "This token is not valid, or not any more.") : null,
    h("label", { for: "token" }, "Token"), input,
    h("button", { type: "submit", class: "primary" }, "Continue"),
    h("p", { class: "muted small" }, "An operator makes one with ", h("code", {}, "flowfabric tokens create NAME --scope read"), ".")))));
  input.focus();
}

function showWho() {
  const many = me.namespaces?.length > 1;
  if (many && !me.namespaces.includes(space.get())) space.set(me.namespaces[0]);
  if (!many) space.set(null);
  const scopes = me.scopes.length === 6 ? "all scopes" : me.scopes.join(", ");
  render(byId("who"),
    many ? h("select", { "aria-label": "Namespace", onchange: (event) => { space.set(event.target.value); live.restart(); open(); } },
      me.namespaces.map((name) => h("option", { value: name, selected: name === space.get() }, name))) : null,
    me.open ? null : h("span", { class: "who-name", title: scopes }, me.name),
    me.open ? null : h("span", { class: "wide-only" }, me.scopes.includes("operate") ? "" : `(${scopes})`),
    me.open ? null : h("button", { type: "button", class: "tiny", onclick: () => { token.clear(); signIn(false); } }, "Sign out"));
  render(byId("nav"), PAGES.map(([path, title]) => h("a", { href: `#/${path}`, "data-page": path, "data-key": `nav-${path}` }, title)));
}

async function start() {
  try {
    me = await maybe(get("v1/me"));
  } catch (error) {
    if (error.status === 0) setTimeout(start, 2000);
    else if (error.status !== 401) problem(error);
    return;
  }
  showWho();
  live.restart();
  await open();
}

addEventListener("hashchange", open);
start();
