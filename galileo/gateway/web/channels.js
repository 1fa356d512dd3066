// The panel "Channels": subscriptions of an area to a channel, and their notifications as they come.
//
// The page shows the subscriptions that its address names, and follows their brokers. It reads of each
// what the cluster has stored, so a page that is loaded again, or a link, shows the same.

import { html, useEffect, useReducer, useRef, useState } from "./vendor/htm-preact.js";
import { get, post, remove } from "./api.js";
import * as conditions from "./conditions.js";
import { BrokerFollower } from "./events.js";
import * as formats from "./formats.js";
import { change, fragment } from "./fragment.js";
import { useAnswer } from "./hooks.js";
import * as icons from "./icons.js";
import { Values } from "./values.js";

const LATEST = 8;
const LIST_EVERY_MS = 5_000;
const BROKERS_MAX = 3;  // Each is a connection, and browsers open six to a host.
const NOTHING = { total: 0, fresh: 0, latest: [], gone: 0 };
const SUGGESTED = `map-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
let begun = 0;  // subscriptions of this page
const INPUTS = {
  float: { type: "number", step: "any", required: true },
  text: { type: "text" },
  time: { type: "datetime-local", step: 1, required: true },
  bool: { type: "checkbox" },
};
const BY_DISTANCE = /\b(?:S_)?DWITHIN\s*\(\s*geometry\s*,\s*:/i;
const KINDS = { box: [icons.BOX, "Box"], polygon: [icons.POLYGON, "Polygon"], point: [icons.POINT, "Point"] };
const HINTS = {
  box: "Click two corners on the map.",
  polygon: "Click the corners on the map; click the last one twice.",
  point: "Click the place on the map.",
};

/** The geometry parameter of a channel, if it has exactly one. */
function areaOf({ parameters }) {
  const found = parameters.filter(({ type }) => type === "geometry");
  return found.length === 1 ? found[0].name : null;
}

const channelPath = (channel) => `channels/${encodeURIComponent(channel)}`;
const brokerPath = ({ channel, broker }) => `${channelPath(channel)}/brokers/${encodeURIComponent(broker)}`;
const subscriptionPath = ({ channel, id }) => `${channelPath(channel)}/subscriptions/${encodeURIComponent(id)}`;
const keyOf = ({ channel, id }) => `${encodeURIComponent(channel)}/${encodeURIComponent(id)}`;

/** The subscriptions that the fragment names: {key, channel, id}. */
function named(text) {
  return text.split(",").filter((key) => key.includes("/")).map((key) => {
    const [channel, id] = key.split("/").map(decoded);
    return { key, channel, id };
  });
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What is known of each subscription, by key; what a notification brought is added once. */
function reduced(state, { kind, key, news, isOld, gone }) {
  const known = state[key] ?? NOTHING;
  switch (kind) {
    case "notified": return { ...state, [key]: {
      total: known.total + news.length,
      fresh: known.fresh + (isOld ? 0 : news.length),
      latest: [...news.slice(-LATEST).reverse(), ...known.latest].slice(0, LATEST),
      gone: known.gone + gone,
    } };
    case "looked": return { ...state, [key]: { ...known, fresh: 0 } };
    case "forgotten": return Object.fromEntries(Object.entries(state).filter(([other]) => other !== key));
    default: return state;
  }
}

/** The notifications of a subscription in an item: {number, left, geometry, properties}. */
function newsOf({ token, features, matches }, id) {
  const own = matches.filter(({ subscriptions }) => subscriptions.includes(id));
  return own.flatMap(({ rows, left = false }) => rows.map((row) => ({ ...features[row], left, number: `${token} ${row}` })));
}

const goneOf = ({ gone }) => gone.reduce((sum, { commits }) => sum + commits, 0);

/** The subscriptions of the page, what each was notified of, and calls.
 *
 * Args:
 *   text: of the fragment.
 *   isShown: whether the panel is shown.
 *   arrived(subscription, news, isOld): called for its notifications.
 */
export function useSubscriptions(text, { isShown, arrived }) {
  const [found, dispatch] = useReducer(reduced, {});
  const [streams, setStream] = useReducer((all, [key, state]) => ({ ...all, [key]: state }), {});
  const [version, renew] = useReducer((one) => one + 1, 0);
  const channels = useAnswer(
    async (signal) => (await get("channels", {}, { signal })).channels, [], { everyMs: LIST_EVERY_MS, isEnabled: isShown },
  );
  const list = useAnswer((signal) => Promise.all(named(text).map((one) => stored(one, signal))), [text, version]);
  const followers = useRef(new Map()), own = useRef(new Set()), latest = useRef(null);
  const listed = list.value ?? [];
  latest.current = { arrived, listed };
  const brokers = [...new Set(listed.filter(({ problem }) => !problem).map(brokerPath))].slice(0, BROKERS_MAX);
  const notified = (path, items, isOld) => {
    for (const one of latest.current.listed.filter((other) => !other.problem && brokerPath(other) === path)) {
      const news = items.flatMap((item) => newsOf(item, one.id));
      const gone = items.reduce((sum, item) => sum + goneOf(item), 0);
      const isHistory = isOld && !own.current.has(one.key);
      if (news.length || gone) dispatch({ kind: "notified", key: one.key, news, isOld: isHistory, gone });
      if (news.length) latest.current.arrived(one, news, isHistory);
    }
  };
  useEffect(() => {
    if (!list.value) return;
    for (const [path, follower] of followers.current) {
      if (!brokers.includes(path)) { follower.stop(); followers.current.delete(path); setStream([path, undefined]); }
    }
    for (const path of brokers.filter((one) => !followers.current.has(one))) {
      followers.current.set(path, new BrokerFollower(path, {
        notified: (items, isOld) => notified(path, items, isOld),
        connected: (isConnected) => setStream([path, { isConnected }]),
        ended: (problem) => setStream([path, { problem }]),
      }));
    }
  }, [brokers.join()]);
  useEffect(() => () => { for (const follower of followers.current.values()) follower.stop(); }, []);
  const hide = (one) => {
    dispatch({ kind: "forgotten", key: one.key });
    change({ subscriptions: named(fragment().subscriptions).map(({ key }) => key).filter((key) => key !== one.key).join() });
  };
  return {
    channels, list, found, streams, hide, renew, isFollowed: (one) => brokers.includes(brokerPath(one)),
    looked: (one) => dispatch({ kind: "looked", key: one.key }),
    begin(subscription) {
      const key = keyOf(subscription);
      own.current.add(key);
      change({ subscriptions: [...new Set([...named(fragment().subscriptions).map((one) => one.key), key])].join() });
      renew();
    },
    async end(one) {
      await remove(subscriptionPath(one));
      hide(one);
    },
  };
}

/** A subscription as the cluster has stored it: with its broker and values, or the problem. */
async function stored({ key, channel, id }, signal) {
  try {
    const { broker, id: _, ...values } = await get(subscriptionPath({ channel, id }), {}, { signal });
    return { key, channel, id, broker, values, areas: Object.values(values).filter((value) => value?.coordinates) };
  } catch (problem) {
    if (problem.status === undefined || problem.isTransient || problem.status === 401) throw problem;
    return { key, channel, id, problem, areas: [] };
  }
}

/** Args of the component:
 *   subscriptions: of `useSubscriptions`.
 *   dataset: the shown one.
 *   area, setArea: the area that is drawn for the next subscription.
 *   draw(kind), drawing: lets the user draw, and what is being drawn.
 *   seen(kind): what the map shows, as a box or as the point in the middle.
 *   locate(place), announce(text).
 */
export function ChannelsPanel({ subscriptions, dataset, area, setArea, draw, drawing, seen, locate, announce }) {
  const { channels, list } = subscriptions;
  const [isOpen, setOpen] = useState(area !== null);
  const suited = (channels.value ?? []).filter((one) => one.dataset === dataset && areaOf(one));
  const close = () => { setOpen(false); setArea(null); draw(null); };
  const subscribed = (subscription) => {
    close();
    subscriptions.begin(subscription);
    announce("The subscription has begun.");
  };
  const problem = channels.problem ?? list.problem;
  return html`<div class="watches">
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
    ${!channels.value && !problem && html`<p class="muted">Reading the channels…</p>`}
    ${channels.value && suited.length === 0 && html`<${NoChannel} dataset=${dataset} />`}
    ${suited.length > 0 && (isOpen
      ? html`<${SubscribeForm} key=${dataset} channels=${suited} listed=${list.value ?? []}
          ...${{ area, setArea, draw, drawing, seen, subscribed, close }} />`
      : html`<button onClick=${() => setOpen(true)}>${icons.BELL} Subscribe an area…</button>`)}
    ${(list.value ?? []).map((one) => html`<${Subscription} key=${one.key} ...${{ subscriptions, one, locate, announce }} />`)}
  </div>`;
}

function NoChannel({ dataset }) {
  return html`<div class="empty"><p>No channel of ${dataset || "a dataset"} takes an area.</p>
    <p class="muted">A channel is a query with parameters, for many subscriptions. One of them has to be an area or a place:</p>
    <pre>galileo channel create inside ${dataset || "DATASET"} "S_INTERSECTS(geometry, :area)" --period 1s</pre></div>`;
}

function SubscribeForm({ channels, listed, area, setArea, draw, drawing, seen, subscribed, close }) {
  const [name, setName] = useState(channels[0].id);
  const [state, set] = useState({ problem: null, isPending: false, known: null });
  const first = useRef(null);
  useEffect(() => first.current?.focus(), []);
  const channel = channels.find(({ id }) => id === name) ?? channels[0];
  const kinds = BY_DISTANCE.test(channel.template) ? ["point"] : ["box", "polygon"];
  const fits = area && kinds.includes(area.kind);
  const others = channel.parameters.filter(({ type }) => type !== "geometry");
  const mates = listed.filter((one) => one.channel === channel.id);
  const suggested = `${SUGGESTED}-${begun + 1}`;
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target), isReplacing = event.submitter?.value === "replace";
    const subscription = { id: form.get("id").trim(), broker: form.get("broker").trim() };
    const values = Object.fromEntries(others.map(({ name: of, type }) => [of, valueOf(type, form.get(`:${of}`))]));
    set({ problem: null, isPending: true, known: null });
    try {
      const known = subscription.id === suggested || isReplacing ? null
        : await get(subscriptionPath({ channel: channel.id, ...subscription })).catch(unlessMissing);
      if (known) { set({ problem: null, isPending: false, known }); return; }
      const body = { ...values, [areaOf(channel)]: conditions.geometry(area), ...subscription };
      await post(`${channelPath(channel.id)}/subscriptions`, body);
      begun += 1;
      subscribed({ channel: channel.id, ...subscription });
    } catch (problem) {
      set({ problem, isPending: false, known: null });
    }
  };
  const { problem, known, isPending } = state;
  return html`<form class="editor" onSubmit=${submit} aria-label="Subscribe an area">
    <label class="field">Channel<select ref=${first} value=${channel.id} onChange=${(event) => setName(event.target.value)}>
      ${channels.map(({ id }) => html`<option value=${id}>${id}</option>`)}</select></label>
    <p class="mono query-text">${channel.template}</p>
    <div class="field" role="group" aria-label="Area"><span aria-hidden="true">Area</span>
      <div class="row">
        ${kinds.map((kind) => html`<button type="button" class=${drawing === kind ? "pressed" : ""} aria-pressed=${drawing === kind}
          title=${`Draw a ${kind} on the map`} onClick=${() => draw(drawing === kind ? null : kind)}>${KINDS[kind][0]} ${KINDS[kind][1]}</button>`)}
        <button type="button" onClick=${() => { draw(null); setArea(seen(kinds[0])); }}>${icons.FIT} ${kinds[0] === "point" ? "Middle" : "View"}</button>
      </div>
      <p class="hint" role="status">${drawing ? HINTS[drawing] : areaWords(fits ? area : null, kinds[0])}</p></div>
    ${others.map((parameter) => html`<${ParameterInput} key=${`${channel.id} ${parameter.name}`} ...${parameter} />`)}
    <div class="row bounds">
      <label class="field">Id<input name="id" required maxlength="200" autocomplete="off" spellcheck="false" defaultValue=${suggested} /></label>
      <label class="field">Broker<input name="broker" required maxlength="200" autocomplete="off" spellcheck="false"
        defaultValue=${mates.find(({ broker }) => broker)?.broker ?? SUGGESTED} /></label>
    </div>
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
    ${known && html`<p class="problem" role="alert">A subscription ${known.id} of the broker ${known.broker} is there already.</p>`}
    <div class="row actions">
      <button class="primary" disabled=${isPending || !fits}>${isPending ? "Subscribing…" : "Subscribe"}</button>
      ${known && html`<button name="act" value="replace">Replace it</button>`}
      <button type="button" onClick=${close}>Cancel</button></div>
  </form>`;
}

function ParameterInput({ name, type }) {
  const input = html`<input name=${`:${name}`} ...${INPUTS[type]} autocomplete="off" />`;
  if (type === "bool") return html`<label class="check">${input} ${formats.named(name)}</label>`;
  return html`<label class="field"><span>${formats.named(name)} ${type === "time" && html`<span class="muted">UTC</span>`}</span>${input}</label>`;
}

/** The value of a parameter, from a form. */
function valueOf(type, given) {
  switch (type) {
    case "float": return Number(given);
    case "bool": return given !== null;
    case "time": return `${given}Z`;
    default: return given;
  }
}

/** Null for a subscription that is not there. */
function unlessMissing(problem) {
  if (problem.status === 404) return null;
  throw problem;
}

function areaWords(area, kind) {
  if (!area) return kind === "point" ? "Draw a place, or take the middle of the map." : "Draw an area, or take what the map shows.";
  if (area.kind === "point") return formats.position(...area.at);
  if (area.kind === "polygon") return `A polygon of ${area.ring.length - 1} corners.`;
  const [west, south, east, north] = area.bbox;
  return `From ${formats.position(west, south)} to ${formats.position(east, north)}.`;
}

function Subscription({ subscriptions, one, locate, announce }) {
  const { found, streams, hide, looked, end, isFollowed } = subscriptions;
  const [problem, setProblem] = useState(null);
  const { total, fresh, latest, gone } = found[one.key] ?? NOTHING;
  const stream = one.problem ? { problem: one.problem } : streams[brokerPath(one)] ?? {};
  const isRunning = !stream.problem && isFollowed(one);
  const unsubscribe = async () => {
    await end(one);
    announce("The subscription has ended.");
  };
  return html`<article class=${isRunning ? "watch" : "watch over"} aria-label=${`Subscription ${one.id}`}>
    <header class="row"><span class=${isRunning ? "state running" : "state"}>${isRunning ? "running" : "not followed"}</span>
      <b class="query-text">${one.id}</b>
      ${fresh > 0 && html`<button class="badge" title="Mark as seen" onClick=${() => looked(one)}>${formats.count(fresh)} new</button>`}
    </header>
    <p class="muted facts"><span>channel ${one.channel}</span> ${one.broker && html`<span>broker ${one.broker}</span>`}
      ${Object.entries(one.values ?? {}).filter(([, value]) => !value?.coordinates).map(([name, value]) => html`
        <span>${formats.named(name)} ${typeof value === "number" ? formats.number(value) : String(value)}</span>`)}</p>
    <p class="muted facts"><span>${formats.counted(total, "notification")}</span></p>
    ${stream.isConnected === false && html`<p class="notice" role="status">The stream of notifications is interrupted. It goes on where it stopped.</p>`}
    ${stream.problem && html`<p class="problem" role="alert">${stream.problem.message}</p>`}
    ${!stream.problem && !isRunning && html`<p class="notice">A page follows ${BROKERS_MAX} brokers. Hide the subscriptions of another one.</p>`}
    ${gone > 0 && html`<p class="notice">${formats.counted(gone, "execution")} gone: deleted before they were read.</p>`}
    ${latest.length > 0 && html`<ul class="latest" aria-label="Latest notifications">
      ${latest.slice(0, fresh ? LATEST : 3).map((item) => html`<li key=${item.number}>
        ${item.left && html`<b>left</b>`}
        ${item.geometry && html`<button class="link" onClick=${() => locate(item.geometry.coordinates)}>
          ${formats.position(...item.geometry.coordinates)}</button>`}
        ${item.properties.time && html`<span class="muted">${formats.time(Date.parse(item.properties.time))}</span>`}
        <${Values} properties=${item.properties} /></li>`)}
    </ul>`}
    <div class="row actions">
      ${!one.problem && html`<button onClick=${() => unsubscribe().catch(setProblem)}>Unsubscribe</button>`}
      <button onClick=${() => hide(one)}>Hide</button></div>
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
  </article>`;
}
