// The panel "Cell": what a cell holds, its series as a meteogram, its observations as files.

import { html, useState } from "./vendor/htm-preact.js";
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
      <p class="muted">Its series and its observations appear here. With the keyboard: move the map with the arrow keys, and press Enter for the cell in the middle.</p></div>`;
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
      <p><b>${formats.counted(total, "observation")}</b> <span class="muted">in ${formats.counted(columns.time.length, "window")} of ${formats.duration(bucketS)}</span></p>
      ${features.map((feature) => html`<${Meteogram} key=${feature.name} feature=${feature} columns=${columns} extent=${extent}
        bucketMs=${bucketS * 1000} time=${interval(time)} />`)}`}
    <${Downloads} dataset=${dataset} cell=${cell} filter=${within} time=${time} />
  </div>`;
}

/** The mean of a feature over time, as a line within the band from its least to its greatest. */
function Meteogram({ feature, columns, extent, bucketMs, time }) {
  const [pointed, setPointed] = useState(null);
  const times = columns.time.map(Date.parse);
  const [means, lows, highs] = ["mean", "min", "max"].map((one) => columns[`${feature.name}_${one}`] ?? []);
  const valued = means.map((mean, index) => index).filter((index) => means[index] !== null);
  if (!valued.length) return null;
  const least = Math.min(...valued.map((index) => lows[index])), most = Math.max(...valued.map((index) => highs[index]));
  const margin = (most - least || Math.abs(most) || 1) * 0.05;
  const [from, to] = [Math.min(extent[0], times[0]), Math.max(extent[1], times.at(-1) + bucketMs)];
  const x = (at) => (WIDTH * (at + bucketMs / 2 - from)) / (to - from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - least + margin) / (most - least + 2 * margin));
  const runs = consecutive(valued, times, bucketMs);
  const shown = pointed ?? valued.at(-1);
  const grid = formats.ticks(least, most, 3);
  const step = grid.length > 1 ? grid[1] - grid[0] : 0.1;
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = from + ((event.clientX - box.left) / box.width) * (to - from) - bucketMs / 2;
    setPointed(valued.reduce((best, index) => (Math.abs(times[index] - at) < Math.abs(times[best] - at) ? index : best)));
  };
  const unit = feature.unit ? ` ${feature.unit}` : "";
  return html`<figure class="meteogram">
    <figcaption><b>${formats.named(feature.name)}</b>
      <span class="value">${formats.number(means[shown], step / 10)}${unit}</span>
      <span class="muted">${formats.time(times[shown])}</span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" onPointerMove=${point} onPointerLeave=${() => setPointed(null)}
      aria-label=${`${formats.named(feature.name)}: from ${formats.number(least, step / 10)} to ${formats.number(most, step / 10)}${unit}, last mean ${formats.number(means[valued.at(-1)], step / 10)}${unit}`}>
      ${time && html`<rect class="shown-time" x=${x(time[0]) - (WIDTH * bucketMs) / 2 / (to - from)} y="0" height=${HEIGHT} width=${(WIDTH * (time[1] - time[0])) / (to - from)} />`}
      ${grid.map((value) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${y(value)} y2=${y(value)} />
        <text class="grid-text" x="2" y=${y(value) - 2.5}>${formats.number(value, step)}</text>`)}
      ${runs.map((run) => run.length > 1 ? html`
        <path class="band" d=${`M${run.map((index) => `${x(times[index])} ${y(highs[index])}`).join("L")}L${[...run].reverse().map((index) => `${x(times[index])} ${y(lows[index])}`).join("L")}Z`} />
        <path class="line" d=${`M${run.map((index) => `${x(times[index])} ${y(means[index])}`).join("L")}`} />`
        : html`<line class="line" x1=${x(times[run[0]])} x2=${x(times[run[0]])} y1=${y(lows[run[0]])} y2=${y(highs[run[0]])} />
          <circle class="dot" cx=${x(times[run[0]])} cy=${y(means[run[0]])} r="2.5" />`)}
      ${pointed !== null && html`<line class="pointer" x1=${x(times[shown])} x2=${x(times[shown])} y1="0" y2=${HEIGHT} />
        <circle class="dot" cx=${x(times[shown])} cy=${y(means[shown])} r="3.5" />`}
    </svg>
    <div class="time-axis muted" aria-hidden="true">${axis(from, to, 4).map(({ place, words }) => html`<span style=${{ left: `${place}%` }}>${words}</span>`)}</div>
  </figure>`;
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
    set({ pending: format, problem: null });
    try {
      await download(collection(dataset, "/items"), { f: format, filter, datetime: datetime(time) }, `${dataset}-${cell}.${format}`);
      set({ pending: "", problem: null });
    } catch (problem) {
      set({ pending: "", problem });
    }
  };
  return html`<div class="downloads">
    <h3>Its observations</h3>
    <div class="row">${[["csv", "CSV"], ["parquet", "Parquet"]].map(([format, words]) => html`
      <button disabled=${state.pending !== ""} onClick=${() => read(format)}>${icons.DOWNLOAD} ${state.pending === format ? "Reading…" : words}</button>`)}</div>
    ${state.problem && html`<p class="problem" role="alert">${state.problem.message}</p>`}
  </div>`;
}
