// Events of continuous queries and of brokers of channels, read by `fetch`: one stream for all queries
// that are followed, and one for each broker.
//
// The page keeps the token of each query and broker, so after a lost connection each event comes
// exactly once: a token is changed together with what the event brought. Of a keyed dataset the page
// keeps the ids of what matches: an update first withdraws some, and then has others.

import { Problem, address, get, send } from "./api.js";
import { attempt, pause } from "./hooks.js";

const LINKED_LABELS_MAX = 5_000;
const REOPEN_MS = 500;
const PAGE = 1_000;

/** Follows queries until it is stopped.
 *
 * Args:
 *   calls: `updated(id, data)` for each update, `ended(id, problem)`, and `connected(isConnected)`.
 *     `data` has `features`, their `count`, which may be larger, and `isOld` for those that were there
 *     when the page began to follow the query. Of a keyed dataset, it also has the features that are
 *     `withdrawn`, and the `total` of those that match now.
 */
export class Follower {
  constructor(calls) {
    this._calls = calls;
    this._tokens = {};
    this._behind = new Set();
    this._held = {};
    this._aborting = null;
  }

  /** Follows these queries, by id, from their tokens on; "" is the beginning. */
  follow(tokens) {
    const ids = Object.keys(tokens).sort().join();
    if (this._aborting && ids === Object.keys(this._tokens).sort().join()) return;
    this.stop();
    // A token of a query that is followed already is newer than a given one.
    this._tokens = Object.fromEntries(
      Object.entries(tokens).map(([id, token]) => [id, this._tokens[id] ?? token]),
    );
    for (const [id, token] of Object.entries(this._tokens)) if (!token) this._behind.add(id);
    if (!ids) return;
    this._aborting = new AbortController();
    this._run(this._aborting.signal);
  }

  stop() {
    this._aborting?.abort();
    this._aborting = null;
  }

  async _run(signal) {
    for (let failures = 0; !signal.aborted && Object.keys(this._tokens).length;) {
      let problem = null, isMoved = false;
      try {
        const answer = await this._open(signal);
        this._calls.connected(true);
        failures = 0;
        for await (const frame of frames(answer.body)) {
          if (signal.aborted) return;
          isMoved = await this._take(frame, signal);
          if (isMoved) break;
        }
      } catch (error) {
        failures += 1;
        if (error.status === 401) return;
        if (error instanceof Problem) problem = error;  // Otherwise the connection was lost.
      }
      if (signal.aborted) return;
      if (isMoved) continue;
      this._calls.connected(false);
      await (problem ? attempt(problem, failures, signal) : pause(REOPEN_MS, signal));
    }
  }

  _open(signal) {
    return send(address("events"), {
      method: "POST", signal, body: JSON.stringify({ ccqs: this._tokens }),
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    });
  }

  /** Takes an event; whether the stream has to be opened anew. */
  async _take({ name, data }, signal) {
    const id = data?.ccq;
    if (!(id in this._tokens)) return false;
    if (name === "end") {
      delete this._tokens[id];
      this._calls.ended(id, data);
    } else if (name === "update") {
      this._update(id, data, data.features ?? await linked(data));
    } else if (name === "behind") {  // Of a keyed dataset or a reset: too large for an event.
      const url = new URL(data.links[0].href, address("events"));
      for (let part = null; !signal.aborted && (!part || part.more);) {
        part = await get(url, {}, { signal });
        this._update(id, part, part.features);
        url.searchParams.set("after", part.token);
      }
      return true;
    } else if (name === "history_changed" && this._held[id]) {  // What was lost is not withdrawn.
      this._tokens[id] = "";
      this._held[id].clear();
      this._behind.add(id);
      return true;
    }
    return false;
  }

  _update(id, data, features) {
    this._tokens[id] = data.token;
    const isOld = this._behind.has(id), { withdrawn } = data;
    if (!data.more) this._behind.delete(id);
    // All updates of a keyed dataset say whether they are resets; the first one tells.
    if (!(id in this._held)) this._held[id] = data.reset === undefined ? null : new Set();
    const held = this._held[id];
    if (held) {
      if (data.reset) held.clear();
      for (const feature of withdrawn) held.delete(feature.id);
      for (const feature of features) held.add(feature.id);
    }
    this._calls.updated(id, {
      ...data, features, count: data.numberMatched ?? features.length, total: held?.size, isOld,
    });
  }
}

/** The labels that an event links to, the first ones of many. */
async function linked(data) {
  const href = data.links?.[0]?.href;
  if (!href || data.numberMatched > LINKED_LABELS_MAX) return [];
  const url = new URL(href, address("events"));
  const features = [];
  for (let part = null; !part || part.more;) {
    if (part) url.searchParams.set("after", part.token);
    part = await get(url);
    features.push(...part.features);
  }
  return features;
}

/** Follows a broker of a channel until it is stopped: first what is kept, then what comes.
 *
 * Args:
 *   path: of the broker.
 *   calls: `notified(items, isOld)` for items as the gateway has them, `ended(problem)`, and
 *     `connected(isConnected)`.
 */
export class BrokerFollower {
  constructor(path, calls) {
    this._path = path;
    this._calls = calls;
    this._token = "";
    this._aborting = new AbortController();
    this._run(this._aborting.signal);
  }

  stop() {
    this._aborting.abort();
  }

  async _run(signal) {
    for (let isBehind = true, failures = 0; !signal.aborted;) {
      let problem = null;
      try {
        while (isBehind) isBehind = await this._readPage(signal);
        const headers = { Accept: "text/event-stream", "Last-Event-ID": this._token };
        const answer = await send(address(`${this._path}/events`), { signal, headers });
        this._calls.connected(true);
        failures = 0;
        for await (const { name, id, data } of frames(answer.body)) {
          if (signal.aborted) return;
          if (name === "end") throw Object.assign(new Problem(data.status, data), { isEnd: true });
          if (data) this._calls.notified([data], false);
          this._token = id;
        }
      } catch (error) {
        failures += 1;
        if (error instanceof Problem) problem = error;  // Otherwise the connection was lost.
      }
      if (signal.aborted || problem?.status === 401) return;
      if (problem && (problem.isEnd || !problem.isTransient)) {
        this._calls.ended(problem);
        return;
      }
      this._calls.connected(false);
      await (problem ? attempt(problem, failures, signal) : pause(REOPEN_MS, signal));
    }
  }

  /** Reads a page of what is kept; whether there may be more. */
  async _readPage(signal) {
    const page = await get(`${this._path}/notifications`, { token: this._token, limit: PAGE }, { signal });
    if (signal.aborted) return false;
    this._calls.notified(page.notifications, true);
    this._token = page.next;
    return page.notifications.reduce((sum, { notifications }) => sum + notifications, 0) >= PAGE;
  }
}

async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (text + value).split("\n\n");
      text = whole.pop();
      for (const frame of whole) {
        const field = (name) => frame.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
        const data = field("data") && JSON.parse(field("data"));
        if (data || field("id")) yield { name: field("event"), id: field("id"), data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
