// The panel "Watches": the caller's continuous queries, and what they find as it comes.

import { html, useEffect, useReducer, useRef, useState } from "./vendor/htm-preact.js";
import { get, remove } from "./api.js";
import { Follower } from "./events.js";
import * as formats from "./formats.js";
import { useAnswer } from "./hooks.js";
import { Values } from "./values.js";

const FOLLOWED_MAX = 64;
const LATEST = 8;
const LIST_EVERY_MS = 5_000;
const NOTHING = { total: 0, fresh: 0, latest: [], gone: 0, problem: null };

/** What is known of each query, by id; what an event brought is added once. */
function reduced(state, action) {
  const known = state[action.id] ?? NOTHING;
  switch (action.kind) {
    case "updated": {
      const labels = action.data.features.map(({ id, geometry, properties }) => ({ id, geometry, properties }));
      const changed = new Set([...(action.data.withdrawn ?? []), ...labels].map(({ id }) => id ?? ""));
      return { ...state, [action.id]: {
        ...known,
        isKeyed: action.data.total !== undefined,
        total: action.data.total ?? (action.data.reset ? 0 : known.total) + action.data.count - (action.data.withdrawn?.length ?? 0),
        fresh: known.fresh + (action.data.isOld ? 0 : action.data.count),
        latest: [...labels.reverse(), ...known.latest.filter(({ id }) => !(action.data.reset || changed.has(id)))].slice(0, LATEST),
        gone: known.gone + action.data.gone.reduce((sum, { commits }) => sum + commits, 0),
      } };
    }
    case "begun": return { ...state, [action.id]: { ...NOTHING, total: action.total } };
    case "ended": return { ...state, [action.id]: { ...known, problem: action.problem } };
    case "looked": return { ...state, [action.id]: { ...known, fresh: 0 } };
    default: return state;
  }
}

/** The watches of the page: the list, what each found, and calls.
 *
 * Args:
 *   arrived(ccq, data): called for each update that has or withdraws labels, but for what there was before.
 */
export function useWatches(arrived) {
  const [found, dispatch] = useReducer(reduced, {});
  const [isConnected, setConnected] = useState(true);
  const [version, renew] = useReducer((one) => one + 1, 0);
  const list = useAnswer(async (signal) => (await get("ccqs", {}, { signal })).ccqs, [version], { everyMs: LIST_EVERY_MS });
  const follower = useRef(null), tokens = useRef({}), latest = useRef(null), known = useRef({});
  // Queries that have ended are listed no more, and stay on the page.
  for (const query of list.value ?? []) known.current[query.id] = query;
  const isListed = new Set((list.value ?? []).map(({ id }) => id));
  const queries = list.value && Object.values(known.current).filter(({ id }) => isListed.has(id) || found[id]?.problem);
  latest.current = { arrived, queries: queries ?? [] };
  if (!follower.current) {
    follower.current = new Follower({
      connected: setConnected,
      updated(id, data) {
        tokens.current = { ...tokens.current, [id]: data.token };
        const isNews = data.count > 0 || data.withdrawn?.length > 0;
        if (isNews || data.gone.length) dispatch({ kind: "updated", id, data });
        const query = latest.current.queries.find((one) => one.id === id);
        if (query && isNews && !data.isOld) latest.current.arrived(query, data);
      },
      ended(id, problem) { dispatch({ kind: "ended", id, problem }); renew(); },
    });
  }
  const running = (list.value ?? []).filter(({ state }) => state === "running").slice(0, FOLLOWED_MAX);
  const ids = running.map(({ id }) => id).join();
  useEffect(() => {
    follower.current.follow(Object.fromEntries(running.map(({ id }) => [id, tokens.current[id] ?? ""])));
  }, [ids]);
  useEffect(() => () => follower.current.stop(), []);
  return {
    list, queries, found, isConnected, dispatch, renew,
    begin(ccq, isKeyed) {
      // Of a keyed dataset events have the ids of what matches, which the answer has not.
      tokens.current[ccq.id] = isKeyed ? "" : ccq.token;
      dispatch({ kind: "begun", id: ccq.id, total: ccq.numberMatched ?? ccq.labels.length });
      renew();
    },
  };
}

export function WatchesPanel({ watches, dataset, show, locate, announce }) {
  const { list, queries, found, isConnected, dispatch, renew } = watches;
  if (list.problem && !queries) return html`<p class="problem">${list.problem.message}</p>`;
  if (!queries) return html`<p class="muted">Reading the watches…</p>`;
  if (!queries.length) {
    return html`<div class="empty"><p>No watch yet.</p>
      <p class="muted">A watch is a query that the cluster keeps asking. Write one under <b>Ask</b>, press <b>Watch…</b>,
        and what is new appears here and on the map within seconds.</p></div>`;
  }
  const cancel = async ({ id }) => {
    await remove(`ccqs/${id}`);
    announce("The watch is cancelled.");
    renew();
  };
  const rank = ({ id, state, dataset: of }) => (of === dataset ? 0 : 1) + (state === "running" && !found[id]?.problem ? 0 : 2);
  const sorted = [...queries].sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
  return html`<div class="watches">
    ${!isConnected && html`<p class="notice" role="status">The stream of news is interrupted. It goes on where it stopped.</p>`}
    ${sorted.map((query) => html`<${Watch} key=${query.id} found=${found[query.id] ?? NOTHING} ...${{ query, show, locate }}
      looked=${() => dispatch({ kind: "looked", id: query.id })} cancel=${() => cancel(query)} />`)}
  </div>`;
}

function Watch({ query, found, show, locate, looked, cancel }) {
  const [isAsking, setAsking] = useState(false);
  const [problem, setProblem] = useState(null);
  const isRunning = query.state === "running" && !found.problem;
  const text = wordsOf(query.query);
  return html`<article class=${isRunning ? "watch" : "watch over"} aria-label=${`Watch of ${query.dataset}`}>
    <header class="row">
      <span class=${isRunning ? "state running" : "state"}>${isRunning ? "running" : endOf(query, found)}</span>
      <b>${query.dataset}</b>
      ${found.fresh > 0 && html`
        <button class="badge" title="Mark as seen" onClick=${looked}>${formats.count(found.fresh)} new</button>`}
    </header>
    <p class="mono query-text">${text || "all observations"}</p>
    <p class="muted facts"><span>${found.isKeyed ? `${formats.count(found.total)} now` : formats.counted(found.total, "label")}</span> <span>every ${formats.duration(query.interval)}</span>${isRunning
      ? html` <span title=${query.id}>coordinator ${query.coordinator || "being chosen"}</span> <span>${expires(query.expires)}</span>` : ""}</p>
    ${found.gone > 0 && html`<p class="notice">
      ${formats.counted(found.gone, "commit")} gone: retention deleted them before they were read.</p>`}
    ${found.latest.length > 0 && html`<ul class="latest" aria-label="Latest labels">
      ${found.latest.slice(0, found.fresh ? LATEST : 3).map((label) => html`<li key=${label.properties.label}>
        <button class="link mono" onClick=${() => locate(query.dataset, label)}>${label.properties.geohash}</button>
        <span class="muted">${formats.time(Date.parse(label.properties.time))}</span>
        <${Values} properties=${label.properties} /></li>`)}
    </ul>`}
    <div class="row actions">
      ${typeof query.query === "string" || text ? html`<button onClick=${() => show(query.dataset, text)}>Show</button>` : null}
      ${isRunning && (isAsking
        ? html`<button class="danger" onClick=${() => cancel().catch(setProblem)}>End it for good</button>
          <button onClick=${() => setAsking(false)}>Keep</button>`
        : html`<button onClick=${() => setAsking(true)}>End…</button>`)}
    </div>
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
  </article>`;
}

function endOf(query, found) {
  return found.problem ? found.problem.kind.replace("ccq_", "") || "ended" : query.state;
}

function expires(text) {
  const left = (Date.parse(text) - Date.now()) / 1000, unit = left < 3600 ? 60 : 3600;
  return left > 0 ? `${formats.duration(Math.max(1, Math.round(left / unit)) * unit)} left` : "ends";
}

// --- CQL2 JSON as text -------------------------------------------------------------------------

const COMPARISONS = new Set(["=", "<>", "<", "<=", ">", ">="]);

/** CQL2 text of a query that the gateway gives as CQL2 JSON. */
export function wordsOf(query) {
  if (query === true || query === "" || query === null) return "";
  return typeof query === "string" ? query : expression(query);
}

function expression(node, isInner = false) {
  if (typeof node === "boolean") return String(node);
  const { op, args } = node;
  if (op === "and" || op === "or") {
    const joined = args.map((one) => expression(one, true)).join(` ${op.toUpperCase()} `);
    return isInner ? `(${joined})` : joined;
  }
  if (op === "not") return `NOT (${expression(args[0])})`;
  if (COMPARISONS.has(op)) return `${operand(args[0])} ${op} ${operand(args[1])}`;
  if (op === "between") return `${operand(args[0])} BETWEEN ${operand(args[1])} AND ${operand(args[2])}`;
  if (op === "in") return `${operand(args[0])} IN (${args[1].map(operand).join(", ")})`;
  if (op === "like") return `${operand(args[0])} LIKE ${operand(args[1]).replaceAll("\\\\", "\\")}`;
  if (op === "isNull") return `${operand(args[0])} IS NULL`;
  return `${op.toUpperCase()}(${args.map(operand).join(", ")})`;
}

function operand(value) {
  if (typeof value === "string") return `'${value.replace(/['\\]/g, "$&$&")}'`;
  if (value === null || typeof value !== "object") return String(value);
  if (value.property) return value.property;
  if (value.timestamp) return `TIMESTAMP('${value.timestamp}')`;
  if (value.date) return `DATE('${value.date}')`;
  if (value.interval) return `INTERVAL(${value.interval.map((end) => `'${end}'`).join(", ")})`;
  if (value.bbox) return `BBOX(${value.bbox.join(", ")})`;
  if (value.coordinates) return geometry(value);
  if (Array.isArray(value)) return `(${value.map(operand).join(", ")})`;
  return expression(value);
}

function geometry({ type, coordinates }) {
  const list = (value) => (Array.isArray(value[0]) ? `(${value.map(list).join(", ")})` : value.join(" "));
  const inner = list(coordinates);
  return `${type.toUpperCase()}${type === "Point" ? `(${inner})` : inner}`;
}
