// The panel "Cell": what a cell holds, its series as a meteogram, its observations as files.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { collection, download, get } from "./api.js";
import * as formats from "./formats.js";
import { bounds } from "./geohash.js";
import { useAnswer } from "./hooks.js";
import * as icons from "./icons.js";
import { axis, datetime, interval } from "./time.js";

const FEATURES_MAX = 6;
const WIDTH = 320, HEIGHT = 92, TOP = 10, BOTTOM = 6;

/** The filter of a cell within another one. */
export function filterOfCell(cell, filter) {
  const own = `geohash LIKE '${cell}%'`;
  return filter.trim() ? `(${filter}) AND ${own}` : own;
}

/** Args: dataset, its summary, the cell's geohash, the filter and time that are shown, bucketS. */
export function CellPanel({ dataset, summary, cell, filter, time, bucketS, extent, close, version }) {
  const features = (summary?.features ?? [])
    .filter(({ type, indexed }) => indexed !== false && type !== "text").slice(0, FEATURES_MAX);
  const within = cell ? filterOfCell(cell, filter) : "";
  const series = useAnswer(
    (signal) => get(collection(dataset, "/series"), {
      window: `${bucketS}s`, filter: within,
      statistics: features.flatMap(({ name }) => ["mean", "min", "max"].map((one) => `${name}:${one}`)).join(),
    }, { signal }),
    [dataset, within, bucketS, features.length, version], { isEnabled: Boolean(cell && bucketS), scope: cell },
  );
  if (!cell) {
    return html`<div class="empty"><p>Choose a cell on the map or in the list.</p>
      <p class="muted">Its series and its observations appear here. With the keyboard: move the map with the arrow
        keys, and press Enter for the cell in the middle.</p></div>`;
  }
  const [west, south, east, north] = bounds(cell);
  const columns = series.value?.columns;
  const total = columns?.observations.reduce((sum, one) => sum + one, 0);
  return html`<div class="cell-panel">
    <header class="row">
      <div><h2 class="mono">${cell}</h2>
        <p class="muted">${formats.position((west + east) / 2, (south + north) / 2)}</p></div>
      <button class="icon" aria-label="Close the cell" title="Close" onClick=${close}>${icons.CLOSE}</button>
    </header>
    ${series.problem && !columns && html`<p class="problem">${series.problem.message}</p>`}
    ${!columns && !series.problem && html`<p class="muted">Reading the series…</p>`}
    ${columns && html`
      <p><b>${formats.counted(total, "observation")}</b>${" "}
        <span class="muted">in ${formats.counted(columns.time.length, "window")} of ${formats.duration(bucketS)}</span></p>
      ${features.map((feature) => html`<${Meteogram} key=${feature.name} feature=${feature} columns=${columns} extent=${extent}
        bucketMs=${bucketS * 1000} time=${interval(time)} />`)}`}
    <${Downloads} dataset=${dataset} cell=${cell} filter=${within} time=${time} />
  </div>`;
}

/** The mean of a feature over time, as a line within the band from its least to its greatest. */
function Meteogram({ feature, columns, extent, bucketMs, time }) {
  const [pointed, setPointed] = useState(null);
  const times = useMemo(() => columns.time.map(Date.parse), [columns]);
  const [means, lows, highs] = ["mean", "min", "max"].map((one) => columns[`${feature.name}_${one}`] ?? []);
  const valued = means.map((_, index) => index).filter((index) => means[index] !== null);
  if (!valued.length) return null;
  const least = Math.min(...valued.map((index) => lows[index]));
  const most = Math.max(...valued.map((index) => highs[index]));
  const margin = (most - least || Math.abs(most) || 1) * 0.05;
  const from = Math.min(extent[0], times[0]), to = Math.max(extent[1], times.at(-1) + bucketMs);
  const width = (ms) => (WIDTH * ms) / (to - from);
  const x = (index) => width(times[index] + bucketMs / 2 - from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - least + margin) / (most - least + 2 * margin));
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    setPointed(valued.reduce((best, index) => (Math.abs(x(index) - at) < Math.abs(x(best) - at) ? index : best)));
  };
  const grid = formats.ticks(least, most, 3);
  const step = grid.length > 1 ? grid[1] - grid[0] : 0.1;
  const words = (value) => `${formats.number(value, step / 10)}${feature.unit ? ` ${feature.unit}` : ""}`;
  const name = formats.named(feature.name), last = valued.at(-1), shown = pointed ?? last;
  return html`<figure class="meteogram">
    <figcaption><b>${name}</b> <span class="value">${words(means[shown])}</span>
      <span class="muted">${formats.time(times[shown])}</span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" onPointerMove=${point} onPointerLeave=${() => setPointed(null)}
      aria-label=${`${name}: from ${words(least)} to ${words(most)}, last mean ${words(means[last])}`}>
      ${time && html`<rect class="shown-time" x=${width(time[0] - from)} width=${width(time[1] - time[0])} height=${HEIGHT} />`}
      ${grid.map((value) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${y(value)} y2=${y(value)} />
        <text class="grid-text" x="2" y=${y(value) - 2.5}>${formats.number(value, step)}</text>`)}
      ${consecutive(valued, times, bucketMs).map((run) => html`<${Run} ...${{ run, means, lows, highs, x, y }} />`)}
      ${pointed !== null && html`<line class="pointer" x1=${x(shown)} x2=${x(shown)} y1="0" y2=${HEIGHT} />
        <circle class="dot" cx=${x(shown)} cy=${y(means[shown])} r="3.5" />`}
    </svg>
    <div class="time-axis muted" aria-hidden="true">
      ${axis(from, to, 5).map(({ place, words: at }) => html`<span style=${{ left: `${place}%` }}>${at}</span>`)}</div>
  </figure>`;
}

/** Windows that follow each other: a band and a line, or a point if there is one window. */
function Run({ run, means, lows, highs, x, y }) {
  const path = (indexes, values) => indexes.map((index) => `${x(index)} ${y(values[index])}`).join("L");
  const [first] = run;
  if (run.length === 1) {
    return html`<line class="line" x1=${x(first)} x2=${x(first)} y1=${y(lows[first])} y2=${y(highs[first])} />
      <circle class="dot" cx=${x(first)} cy=${y(means[first])} r="2.5" />`;
  }
  return html`<path class="band" d=${`M${path(run, highs)}L${path([...run].reverse(), lows)}Z`} />
    <path class="line" d=${`M${path(run, means)}`} />`;
}

/** Indexes in runs of windows that follow each other, so that no line crosses a gap. */
function consecutive(indexes, times, bucketMs) {
  const runs = [];
  for (const index of indexes) {
    const last = runs.at(-1)?.at(-1);
    if (last !== undefined && times[index] - times[last] <= bucketMs * 1.01) runs.at(-1).push(index);
    else runs.push([index]);
  }
  return runs;
}

function Downloads({ dataset, cell, filter, time }) {
  const [state, set] = useState({ pending: "", problem: null });
  const read = async (format) => {
    const params = { f: format, filter, datetime: datetime(time) };
    set({ pending: format, problem: null });
    try {
      await download(collection(dataset, "/items"), params, `${dataset}-${cell}.${format}`);
      set({ pending: "", problem: null });
    } catch (problem) {
      set({ pending: "", problem });
    }
  };
  return html`<div class="downloads">
    <h3>Its observations</h3>
    <div class="row">${[["csv", "CSV"], ["parquet", "Parquet"]].map(([format, words]) => html`
      <button disabled=${state.pending !== ""} onClick=${() => read(format)}>
        ${icons.DOWNLOAD} ${state.pending === format ? "Reading…" : words}</button>`)}</div>
    ${state.problem && html`<p class="problem" role="alert">${state.problem.message}</p>`}
  </div>`;
}
