// The panel "Ask": conditions, the text of the query, its estimate, Show, Watch and Copy.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { collection, get, post } from "./api.js";
import * as conditions from "./conditions.js";
import { CopyMenu } from "./copy.js";
import * as formats from "./formats.js";
import { useAnswer } from "./hooks.js";
import * as icons from "./icons.js";

const BINS = 32;
const ESTIMATE_DELAY_MS = 350;
const CLOSE = 0.1;  // how far bounds of an estimate that count as one number may be apart
const INTERVALS = ["1s", "2s", "5s", "15s", "1m", "5m"];
const EXPIRATIONS = [["1h", "1 hour"], ["12h", "12 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"]];

/** Args of the component:
 *   dataset, summary: what is asked of, and what it holds.
 *   filter: the text that is shown.
 *   draft, setDraft: the text that is edited.
 *   show(text): shows it; watched(ccq): called after a submission.
 *   draw(kind), drawing: lets the user draw a region, and what is being drawn.
 */
export function AskPanel({ dataset, summary, filter, draft, setDraft, show, watched, draw, drawing, time, problem }) {
  const [editing, setEditing] = useState(null);
  const [isWatching, setWatching] = useState(false);
  const known = conditions.parse(draft);
  const features = summary?.features ?? [];
  const estimate = useAnswer(
    (signal) => get(collection(dataset, "/estimate"), { filter: draft }, { signal }),
    [dataset, draft, summary?.observations],
    { isEnabled: Boolean(summary), delayMs: ESTIMATE_DELAY_MS, scope: dataset },
  );
  const wrong = estimate.problem?.status === 400 ? estimate.problem : problem?.status === 400 ? problem : null;
  const replace = (index, condition) => {
    const next = [...(known ?? [])];
    if (condition) next[index] = condition; else next.splice(index, 1);
    setDraft(conditions.text(next));
  };
  useEffect(() => setEditing(null), [dataset]);
  return html`
    <section class="ask" aria-label="Ask">
      <h2>Conditions</h2>
      ${known ? html`
        <ul class="chips" aria-label="Conditions">
          ${known.map((condition, index) => html`<li key=${index}>
            <${Chip} condition=${condition} unit=${unitOf(features, condition)} isOpen=${editing === index}
              open=${() => setEditing(editing === index ? null : index)}
              remove=${() => { setEditing(null); replace(index, null); }} />
          </li>`)}
          ${known.length === 0 && html`<li class="muted">None: all observations. Add a condition or draw a region.</li>`}
        </ul>
        ${editing !== null && known[editing] && !conditions.isRegion(known[editing]) && html`
          <${Editor} key=${`${dataset} ${known[editing].feature}`} dataset=${dataset} condition=${known[editing]}
            feature=${features.find(({ name }) => name === known[editing].feature)}
            changed=${(condition) => replace(editing, condition)} close=${() => setEditing(null)} />`}
        <div class="row">
          <${AddFeature} features=${features}
            add=${(condition) => { replace(known.length, condition); setEditing(known.length); }} />
          ${[["box", icons.BOX, "Box"], ["polygon", icons.POLYGON, "Polygon"]].map(([kind, icon, words]) => html`
            <button class=${drawing === kind ? "pressed" : ""} aria-pressed=${drawing === kind} disabled=${!summary} title=${`Draw a ${kind} on the map`}
              onClick=${() => draw(drawing === kind ? null : kind)}>${icon} ${words}</button>`)}
        </div>
        ${drawing && html`<p class="hint" role="status">${drawing === "box"
          ? "Click two corners on the map." : "Click the corners on the map; click the last one twice."}</p>`}`
        : html`<p class="muted">The text below has more than conditions can show. <button class="link"
          onClick=${() => setDraft("")}>Begin anew</button></p>`}
      <label class="field">
        <span>Query <span class="muted">in CQL2</span></span>
        <textarea rows="4" disabled=${!summary} spellcheck="false" autocapitalize="off" autocomplete="off" value=${draft} placeholder="temperature > 290"
          aria-invalid=${wrong ? "true" : "false"} aria-describedby="query-help" onInput=${(event) => setDraft(event.target.value)}
          onKeyDown=${(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) show(draft); }} />
      </label>
      <div id="query-help" class="help" aria-live="polite">
        ${wrong ? html`<${QueryProblem} problem=${wrong} text=${draft} features=${features} replaceText=${setDraft} />`
          : html`<${EstimateWords} estimate=${estimate} summary=${summary} />`}
      </div>
      <div class="row actions">
        <button class="primary" disabled=${Boolean(wrong) || draft.trim() === filter} onClick=${() => show(draft)}>Show</button>
        <button disabled=${Boolean(wrong) || !summary} aria-expanded=${isWatching} onClick=${() => setWatching(!isWatching)}>
          ${icons.BELL} Watch…</button>
        <${CopyMenu} isEnabled=${Boolean(summary)} dataset=${dataset} filter=${draft} time=${time} />
      </div>
      ${isWatching && html`<${WatchForm} dataset=${dataset} query=${draft} close=${() => setWatching(false)}
        watched=${(ccq) => { setWatching(false); watched(ccq); }} />`}
    </section>`;
}

function unitOf(features, condition) {
  return features.find(({ name }) => name === condition.feature)?.unit ?? "";
}

function Chip({ condition, unit, isOpen, open, remove }) {
  const name = condition.feature ? formats.named(condition.feature) : "place";
  const value = conditions.words(condition, unit);
  return html`<span class=${isOpen ? "chip open" : "chip"}>
    ${conditions.isRegion(condition) ? html`<span class="chip-body"><b>${name}</b> ${value}</span>`
      : html`<button class="chip-body" aria-expanded=${isOpen} onClick=${open}><b>${name}</b> ${value}</button>`}
    <button class="icon small" aria-label=${`Remove the condition: ${name} ${value}`} title="Remove" onClick=${remove}>
      ${icons.CLOSE}</button>
  </span>`;
}

function AddFeature({ features, add }) {
  const indexed = features.filter((feature) => feature.indexed !== false);
  return html`<select aria-label="Add a condition" value="" disabled=${!indexed.length} onChange=${(event) => {
    const feature = indexed.find(({ name }) => name === event.target.value);
    event.target.value = "";
    if (feature) add(firstCondition(feature));
  }}>
    <option value="">Condition…</option>
    ${indexed.map(({ name, unit }) => html`
      <option value=${name}>${formats.named(name)}${unit ? ` (${unit})` : ""}</option>`)}
  </select>`;
}

function firstCondition(feature) {
  if (feature.type === "text") {
    return { kind: "values", feature: feature.name, values: Object.keys(feature.values ?? {}).slice(0, 1) };
  }
  if (feature.type === "bool") return { kind: "flag", feature: feature.name, value: true };
  const low = feature.mean ?? feature.minimum ?? 0;
  return { kind: "range", feature: feature.name, low: rounded(low, feature), high: null, isOpen: true };
}

function rounded(value, { minimum, maximum }) {
  const step = 10 ** Math.floor(Math.log10(Math.max(maximum - minimum, 1e-9) / 100));
  return Number((Math.round(value / step) * step).toPrecision(10));
}

const EDITORS = { range: RangeEditor, values: ValuesEditor, flag: FlagEditor };

/** Edits one condition, with what the dataset holds in view. */
function Editor({ close, ...rest }) {
  const { kind, feature } = rest.condition;
  return html`<div class="editor" role="group" aria-label=${`Condition on ${formats.named(feature)}`}>
    <${EDITORS[kind]} ...${rest} />
    <button class="link" onClick=${close}>Done</button>
  </div>`;
}

function FlagEditor({ condition, changed }) {
  return html`<div class="row">${[[true, "yes"], [false, "no"]].map(([value, words]) => html`
    <label><input type="radio" checked=${condition.value === value} onChange=${() => changed({ ...condition, value })} /> ${words}</label>`)}
  </div>`;
}

function RangeEditor({ dataset, condition, feature, changed }) {
  const bars = useAnswer(
    (signal) => get(collection(dataset, "/summary"), { feature: condition.feature, bins: BINS }, { signal }),
    [dataset, condition.feature], { scope: condition.feature },
  ).value;
  const bound = (event) => (event.target.value === "" ? null : Number(event.target.value));
  const low = feature?.minimum ?? bars?.minimum, high = feature?.maximum ?? bars?.maximum;
  const set = (patch) => {
    const next = { ...condition, isOpen: false, ...patch };
    if (next.low === null && next.high === null) return;
    changed(next);
  };
  const step = high > low ? 10 ** Math.floor(Math.log10((high - low) / 100)) : 1;
  const isKnown = low !== undefined && low !== null;
  return html`
    <${Histogram} counts=${bars?.counts ?? []} edges=${bars?.edges ?? []} condition=${condition} />
    <div class="row bounds">
      <label class="field">from<input type="number" step=${step} value=${condition.low ?? ""}
        placeholder=${formats.number(low, step)} onChange=${(event) => set({ low: bound(event) })} /></label>
      <label class="field">to<input type="number" step=${step} value=${condition.high ?? ""}
        placeholder=${formats.number(high, step)} onChange=${(event) => set({ high: bound(event) })} /></label>
      <span class="muted unit">${feature?.unit}</span>
    </div>
    ${isKnown && html`<p class="hint">
      The dataset has ${formats.number(low, step)} to ${formats.number(high, step)} ${feature?.unit}.</p>`}`;
}

function Histogram({ counts, edges, condition }) {
  const most = Math.max(...counts, 1);
  const isIn = (index) => (condition.low === null || edges[index + 1] > condition.low)
    && (condition.high === null || edges[index] <= condition.high);
  return html`<svg class="bars" viewBox=${`0 0 ${BINS} 100`} preserveAspectRatio="none" role="img"
    aria-label="Histogram of the feature">
    ${counts.map((one, index) => html`<rect class=${isIn(index) ? "bar" : "bar out"} x=${index + 0.06} width="0.88"
      y=${100 - (96 * one) / most} height=${(96 * one) / most} />`)}
  </svg>`;
}

function ValuesEditor({ condition, feature, changed }) {
  const [search, setSearch] = useState("");
  const known = Object.entries(feature?.values ?? {});
  const shown = known.filter(([value]) => value.toLowerCase().includes(search.toLowerCase())).slice(0, 100);
  const toggle = (value) => {
    const others = condition.values.filter((one) => one !== value);
    const values = others.length < condition.values.length ? others : [...others, value];
    if (values.length) changed({ ...condition, values });
  };
  if (!known.length) {
    const split = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
    return html`<label class="field">one of, by comma<input value=${condition.values.join(", ")}
      onChange=${(event) => changed({ ...condition, values: split(event.target.value) })} /></label>`;
  }
  return html`
    ${known.length > 8 && html`<input type="search" placeholder="Find a value" aria-label="Find a value" value=${search}
      onInput=${(event) => setSearch(event.target.value)} />`}
    <div class="values">
      ${shown.map(([value, times]) => html`<label key=${value}><input type="checkbox" checked=${condition.values.includes(value)}
        onChange=${() => toggle(value)} /> <span>${value}</span> <span class="muted">${formats.count(times)}</span></label>`)}
    </div>`;
}

/** What is wrong with a text, as the gateway says, with the name that was meant. */
function QueryProblem({ problem, text, features, replaceText }) {
  const unknown = problem.message.match(/'([A-Za-z_][A-Za-z0-9_]*)'/)?.[1];
  const names = features.map(({ name }) => name);
  const meant = unknown && text.includes(unknown) && !names.includes(unknown)
    ? problem.message.match(/did you mean '([^']+)'/)?.[1] : null;
  return html`<p class="problem">${problem.message}
    ${meant && html` <button class="link" onClick=${() => replaceText(text.replaceAll(unknown, meant))}>
      Use ${meant}</button>`}</p>`;
}

function EstimateWords({ estimate, summary }) {
  const { value, problem, isPending } = estimate;
  if (problem && !problem.isTransient) return html`<p class="problem">${problem.message}</p>`;
  if (!value) return html`<p class="muted">${isPending ? "Estimating…" : ""}</p>`;
  const high = Math.min(value.high, summary?.paths ?? value.high), low = Math.min(value.low, high);
  const isClose = high - low <= CLOSE * high;
  const words = isClose ? html`About <b>${formats.counted(Math.round((low + high) / 2), "label")}</b>`
    : html`Between <b>${formats.count(low)}</b> and <b>${formats.counted(high, "label")}</b>`;
  const of = summary?.paths ? ` of ${formats.count(summary.paths)}` : "";
  return html`<p class=${isPending ? "muted stale" : "muted"}>
    ${value.high === 0 ? "No label matches. Widen a condition or remove one." : html`${words}${of}`}</p>`;
}

function WatchForm({ dataset, query, watched, close }) {
  const [interval, setEvery] = useState("2s");
  const [expiration, setExpiration] = useState("1d");
  const [state, set] = useState({ problem: null, isPending: false });
  const first = useRef(null);
  useEffect(() => first.current?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    set({ problem: null, isPending: true });
    try {
      watched(await post("ccqs", { dataset, query, interval, expiration }));
    } catch (problem) {
      set({ problem, isPending: false });
    }
  };
  return html`<form class="editor" onSubmit=${submit} aria-label="Watch this query">
    <p>The cluster looks for new matches again and again, and they appear here at once. The time range of the slider
      is no part of it.</p>
    <div class="row bounds">
      <label class="field">every<select ref=${first} value=${interval} onChange=${(event) => setEvery(event.target.value)}>
        ${INTERVALS.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label class="field">for<select value=${expiration} onChange=${(event) => setExpiration(event.target.value)}>
        ${EXPIRATIONS.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select></label>
    </div>
    ${state.problem && html`<p class="problem" role="alert">${state.problem.message}</p>`}
    <div class="row actions">
      <button class="primary" disabled=${state.isPending}>${state.isPending ? "Submitting…" : "Watch"}</button>
      <button type="button" onClick=${close}>Cancel</button></div>
  </form>`;
}
