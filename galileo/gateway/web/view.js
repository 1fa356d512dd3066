// The map in the page, and what lies over it: zoom, legend, tooltip, notices.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { GRADIENT } from "./colours.js";
import { retryNow, useConnection } from "./connection.js";
import * as formats from "./formats.js";
import { change, fragment } from "./fragment.js";
import * as icons from "./icons.js";
import { MapView } from "./map.js";

const OTHERS_MAX = 3;
const WRITERS = ["writer", "admin"];
const GRANT = html`<p>An administrator of the cluster can give another token:</p>`;

/** Args of the component:
 *   map: a reference, which gets the MapView.
 *   onMap, scale, refit: the cells, their scale, and a function that fits it anew.
 *   title, unit, feature: what the colours mean; no feature for the number of observations.
 *   choose(cell), drawn(condition), moved(view): called for what the user does.
 */
export function MapArea({ map, onMap, scale, refit, title, unit, feature, choose, drawn, moved }) {
  const element = useRef(null), calls = useRef({});
  const [pointed, setPointed] = useState(null);
  calls.current = { choose, drawn, moved };
  useEffect(() => {
    const view = new MapView(element.current, {
      moved: (next) => calls.current.moved(next),
      picked: (longitude, latitude) => calls.current.choose(view.cellNear(longitude, latitude)),
      drawn: (condition) => calls.current.drawn(condition),
      pointed: setPointed,
    });
    const follow = () => {
      const [longitude, latitude, zoom] = fragment().at.split(",").map(Number);
      if (Number.isFinite(longitude + latitude + zoom)) view.moveTo({ longitude, latitude, zoom });
    };
    follow();
    addEventListener("hashchange", follow);
    map.current = view;
    return () => { removeEventListener("hashchange", follow); view.map.setTarget(null); };
  }, []);
  const pressed = (event) => {
    if (event.key === "Enter") map.current.pickCentre();
    if (event.key === "Escape") choose("");
  };
  const name = pointed && map.current ? map.current.cellNear(pointed.longitude, pointed.latitude) : "";
  const index = name ? onMap.index(name) : undefined;
  const value = index === undefined ? null : onMap.values[index];
  return html`
    <div class="map" ref=${element} tabindex="0" role="application" onKeyDown=${pressed}
      aria-label="Map of cells. Arrow keys move it, plus and minus zoom, Enter chooses the cell in the middle. All cells are listed under Cells."></div>
    <div class="zoom">
      <button class="icon" aria-label="Zoom in" title="Zoom in" onClick=${() => map.current.zoom(1)}>${icons.ADD}</button>
      <button class="icon" aria-label="Zoom out" title="Zoom out" onClick=${() => map.current.zoom(-1)}>${icons.REMOVE}</button>
      <button class="icon" aria-label="Show all cells" title="Show all cells" disabled=${!onMap.length}
        onClick=${() => map.current.fitCells()}>${icons.FIT}</button>
    </div>
    ${scale && onMap.length > 0 && html`<${Legend} ...${{ scale, title, unit, value, refit }} />`}
    ${index !== undefined && html`
      <div class="tip" style=${{ transform: `translate(${pointed.pixel[0] + 14}px, ${pointed.pixel[1] + 14}px)` }}>
        ${feature && html`<b>${formats.number(value, 0.01)} ${unit}</b> `}
        ${formats.counted(onMap.observations[index], "observation")}
        <span class="muted mono">${name}</span>
      </div>`}
    ${pointed && html`<p class="place" aria-hidden="true">
      ${formats.position(((((pointed.longitude + 180) % 360) + 360) % 360) - 180, pointed.latitude)}</p>`}`;
}

function Legend({ scale, title, unit, value, refit }) {
  const { low, high, isLog } = scale;
  const ticks = isLog ? roundCounts(low, high) : formats.ticks(low, high, 5);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(low) / 100;
  const place = (at) => `${Math.min(100, Math.max(0, 100 * scale.share(at)))}%`;
  const range = `${formats.number(low, step / 10)} to ${formats.number(high, step / 10)} ${unit}`;
  return html`<figure class="legend">
    <figcaption><b>${title}</b> <span class="muted">${unit}</span>
      <button class="link" title="Spread the colours over the values that the map shows now" onClick=${refit}>Fit colours</button>
    </figcaption>
    <div class="ramp" role="img" aria-label=${`Colours from ${range}`}
      style=${{ backgroundImage: `linear-gradient(to right, ${GRADIENT})` }}>
      ${value !== null && !Number.isNaN(value) && html`<i class="mark" style=${{ left: place(value) }}></i>`}</div>
    <div class="ramp-ticks" aria-hidden="true">${ticks.map((at) => html`
      <span style=${{ left: place(at) }}>${isLog ? formats.count(at) : formats.number(at, step)}</span>`)}</div>
  </figure>`;
}

/** Round numbers of a logarithmic scale, few enough to be read. */
function roundCounts(low, high) {
  const found = [];
  for (let at = 1; at <= high * 1.0001; at *= 10) {
    found.push(...[at, 2 * at, 5 * at].filter((one) => one >= low && one <= high));
  }
  const few = found.length > 4 ? found.filter((one) => /^10*$/.test(String(one))) : found;
  return few.length ? few : [low];
}

/** Problems, partial answers, and what to do where there is nothing to see. */
export function MapNotice({ collections, who, dataset, summary, cells, problem, filter, time, map, openToken }) {
  const connection = useConnection();
  if (problem?.status === 401) {
    return html`<${Card} title="A token is needed">
      <p>The cluster shows its data to those it knows.</p>
      <div class="row"><button class="primary" onClick=${openToken}>Use a token</button></div><//>`;
  }
  if (connection.isLost) return html`<${Lost} seconds=${connection.seconds} />`;
  if (problem?.kind === "unknown_dataset" || (problem?.kind === "forbidden" && problem.details.dataset === dataset)) {
    return html`<${UnknownDataset} ...${{ dataset, who, openToken }} others=${collections.value ?? []} />`;
  }
  if (problem && problem.status !== 400) {
    return html`<div class="over top-notice" role="alert">
      <p class=${problem.isTransient ? "notice" : "problem"}>${problem.message}</p></div>`;
  }
  if (collections.value?.length === 0) return html`<${NoDataset} who=${who} openToken=${openToken} />`;
  if (summary.value && !summary.value.observations) {
    return html`<${Card} title=${`${dataset} is empty`}>
      <p>The map shows observations as soon as there are some:</p><pre>galileo ingest ${dataset} FILE</pre><//>`;
  }
  if (cells.value?.missing > 0) {
    return html`<div class="over top-notice" role="status"><p class="notice">
      Partial: ${formats.counted(cells.value.missing, "partition")} cannot be asked. What is shown is true, but incomplete.</p></div>`;
  }
  if (cells.value && !cells.value.cells.length && !cells.isPending) {
    const reasons = [filter && "the conditions", time && "the time range", "this part of the map"].filter(Boolean);
    return html`<${Card} title="Nothing here">
      <p>No observation matches ${reasons.join(" and ")}.</p>
      <div class="row">
        ${filter && html`<button onClick=${() => change({ filter: "" })}>Remove the conditions</button>`}
        ${time && html`<button onClick=${() => change({ time: "" })}>Show all times</button>`}
        <button onClick=${() => map.current.fit(summary.value.extent.bbox)}>Go to the data</button>
      </div><//>`;
  }
  const isReading = cells.isPending || (dataset && !summary.value);
  return isReading ? html`<div class="progress" role="progressbar" aria-label="Reading"></div>` : null;
}

/** The gateway does not answer: what stays, and when it is asked again. */
function Lost({ seconds }) {
  return html`<div class="over top-notice"><p class="notice lost">
    <span role="alert">${navigator.onLine ? "The gateway does not answer." : "This computer is offline."} The map stays as it is.</span>
    <span class="countdown">${seconds ? `Next attempt in ${seconds} s.` : "Trying again…"}</span>
    <button class="link" onClick=${retryNow}>Try now</button></p></div>`;
}

/** A dataset that the gateway does not know, or does not name to this caller; and those that it does. */
function UnknownDataset({ dataset, who, others, openToken }) {
  const { name = "", datasets = ["*"] } = who ?? {}, isGranted = datasets.includes("*");
  return html`<${Card} title=${isGranted ? `No dataset ${dataset}` : `No access to ${dataset}`} role="alert">
    ${isGranted ? html`<p>The cluster has no dataset of this name.</p>` : html`
      <p><b>${name}</b> has no grant on a dataset <b>${dataset}</b>, or there is none. Its grants: <b>${datasets.join(", ") || "none"}</b>.</p>
      ${GRANT}<pre>${grantCommand(who, dataset)}</pre>`}
    <div class="row">${!isGranted && html`<button class="primary" onClick=${openToken}>Use another token</button>`}
      ${others.slice(0, OTHERS_MAX).map(({ id }) => html`<button onClick=${() => open(id)}>Open ${id}</button>`)}</div><//>`;
}

/** The command with which an administrator makes a token that may use a dataset. */
function grantCommand({ name, roles = [] }, dataset) {
  const wanted = roles.map((role) => `--role ${role}`).join(" ");
  return `galileo token create ${name} \\\n  ${wanted} --dataset ${dataset} \\\n  --principals principals.toml`;
}

function open(dataset) {
  change({ dataset, filter: "", cell: "", time: "", at: "" });
}

/** No dataset that the caller may use: how one is made, or who can grant one. */
function NoDataset({ who, openToken }) {
  const { name = "", roles = [], datasets = ["*"] } = who ?? {};
  if (!datasets.includes("*")) {
    const grants = datasets.length ? `may use ${datasets.join(", ")}, and there is no such dataset` : "has no grant on a dataset";
    return html`<${Card} title="No dataset for you">
      <p><b>${name}</b> ${grants}.</p>
      ${GRANT}<pre>${grantCommand(who, "DATASET")}</pre>
      <div class="row"><button class="primary" onClick=${openToken}>Use another token</button></div><//>`;
  }
  const mayWrite = !name || roles.some((role) => WRITERS.includes(role));
  return html`<${Card} title="No dataset yet">
    <p>A dataset holds observations: a position, a time, and values. ${mayWrite ? "Make one"
      : html`The role of <b>${name}</b> only reads; a writer makes one`} from a file, and the map shows it by itself:</p>
    <pre>galileo ingest weather FILE --create</pre>
    <p class="muted">FILE is CSV, Parquet, GRIB or NetCDF. To try generated data: <code>scripts/demo --open</code></p><//>`;
}

function Card({ title, role, children }) {
  return html`<div class="over" role=${role}><div class="card"><h2>${title}</h2>${children}</div></div>`;
}
