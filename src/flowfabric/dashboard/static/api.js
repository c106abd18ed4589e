// Requests to the API beside this page. The token stays in this tab: never in an address.
const KEY = "flowfabric.token";
const SPACE = "flowfabric.namespace";
const base = new URL(".", document.baseURI);

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
};
export const space = {
  get: () => sessionStorage.getItem(SPACE),
  set: (value) => (value ? sessionStorage.setItem(SPACE, value) : sessionStorage.removeItem(SPACE)),
};

const listeners = { down: () => {}, up: () => {}, unauthorised: () => {} };
/** What happens when the server cannot be reached, answers again, or wants a token. */
export function onConnection(given) { Object.assign(listeners, given); }

export function address(path, query = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") url.searchParams.append(name, each);
    }
  }
  return url;
}

export function headers(more = {}) {
  const held = token.get();
  return held ? { authorization: `Bearer ${held}`, ...more } : more;
}

let shared = 0;
/** Seconds that answers may be old from now on: what other pages were told may be shared then. */
export function allowAge(seconds) { shared = seconds; }

async function send(method, path, { query, body, signal } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const more = body === undefined ? {} : { "content-type": "application/json" };
  if (method === "GET" && shared) more["cache-control"] = `max-age=${shared}`;
  let reply;
  try {
    reply = await fetch(address(path, query), {
      method, signal, headers: headers(more), ...sent,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    listeners.down();
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  listeners.up();
  return read(reply);
}

async function read(reply) {
  const text = await reply.text();
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    answer = null;
  }
  if (reply.ok) return answer;
  const error = new ApiError(reply.status, answer?.code ?? `http_${reply.status}`, answer?.error ?? `The server answered ${reply.status}.`);
  if (reply.status === 401) listeners.unauthorised(error);
  throw error;
}

export const get = (path, query = {}, signal) => send("GET", path, { query, signal });
/** A list of what belongs to namespaces: limited to the one that was chosen, if any. */
export const list = (path, query = {}) => get(path, { namespace: space.get(), ...query });
export const post = (path, body = {}) => send("POST", path, { body });
export const put = (path, body = {}) => send("PUT", path, { body });

/** The answer, or null where the server does not have this route or this thing. */
export async function maybe(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 405)) return null;
    throw error;
  }
}
export const part = encodeURIComponent;
