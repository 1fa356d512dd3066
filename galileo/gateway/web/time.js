// The time slider: a histogram of observations, a brush over it, and play.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import * as formats from "./formats.js";
import { NARROW, useMedia } from "./hooks.js";

const SIZES_S = [
  1, 5, 15, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 604800, 2592000, 7776000, 31536000,
];
const BUCKETS_MAX = 150;
const PLAY_MS = 900;

/** The width of buckets for an interval of milliseconds: whole time buckets of the dataset. */
export function bucketSeconds([start, end], timeBucketS) {
  const size = SIZES_S.find(
    (one) => one % timeBucketS === 0 && (end - start) / 1000 / one <= BUCKETS_MAX,
  );
  return size ?? Math.ceil((end - start) / 1000 / BUCKETS_MAX / timeBucketS) * timeBucketS;
}

/** The interval of "start/end" in milliseconds; null for none. */
export function interval(text) {
  const [start, end] = text.split("/").map(Date.parse);
  return end > start ? [start, end] : null;
}

/** As the parameter `datetime` has it: both ends are included, so the end is a moment earlier. */
export function datetime(text) {
  const given = interval(text);
  return given ? `${formats.iso(given[0])}/${new Date(given[1] - 1).toISOString()}` : "";
}

/** Args of the component:
 *   extent: [start, end] of the dataset, milliseconds.
 *   series: {times, observations} of buckets; null while it is not known.
 *   bucketS: their width, seconds.
 *   time: the interval that is shown, "start/end" or "".
 *   changed(time): called with another one.
 *   isReady: whether the map shows the interval, so that play may go on.
 */
export function TimeSlider({ extent, series, bucketS, time, changed, isReady }) {
  const [isPlaying, setPlaying] = useState(false);
  const isNarrow = useMedia(NARROW);
  const chart = useRef(null);
  const bucketMs = bucketS * 1000;
  const [from, to] = useMemo(() => [
    Math.floor(extent[0] / bucketMs) * bucketMs, Math.ceil(extent[1] / bucketMs) * bucketMs,
  ], [extent[0], extent[1], bucketMs]);
  const buckets = Math.max(1, Math.round((to - from) / bucketMs));
  const heights = useMemo(() => histogram(series, { from, bucketMs, buckets }), [series, from, bucketMs, buckets]);
  const given = interval(time);
  const set = (low, high) => {
    const start = Math.max(0, Math.min(low, buckets - 1)), end = Math.min(buckets, Math.max(start + 1, high));
    const isAll = start === 0 && end === buckets;
    changed(isAll ? "" : `${formats.iso(from + start * bucketMs)}/${formats.iso(from + end * bucketMs)}`);
  };
  const at = (ms) => Math.round((ms - from) / bucketMs);
  const [low, high] = given ? [at(given[0]), at(given[1])] : [0, buckets];
  const step = (steps) => {
    const width = given ? high - low : 1;
    const next = given ? low + steps * width : steps > 0 ? 0 : -1;
    const start = next >= buckets ? 0 : next < 0 ? buckets - width : next;  // round and round
    set(start, start + width);
  };
  useEffect(() => {
    if (!isPlaying || !isReady) return undefined;
    const timer = setTimeout(() => step(1), PLAY_MS);
    return () => clearTimeout(timer);
  }, [isPlaying, isReady, time, buckets]);
  const drag = useBrush(chart, buckets, set, () => setPlaying(false));
  const share = (bucket) => `${(100 * bucket) / buckets}%`;
  return html`
    <section class="time" aria-label="Time">
      <div class="time-buttons">
        <button class="icon" title="Step back" aria-label="Step back" onClick=${() => step(-1)}>${BACK}</button>
        <button class="icon primary" aria-label=${isPlaying ? "Pause" : "Play"} title=${isPlaying ? "Pause" : "Play"}
          onClick=${() => setPlaying(!isPlaying)}>${isPlaying ? PAUSE : PLAY}</button>
        <button class="icon" title="Step forward" aria-label="Step forward" onClick=${() => step(1)}>${FORWARD}</button>
      </div>
      <div class="time-chart">
        <div class="time-words">
          <strong>${given ? `${formats.time(given[0])} to ${until(given)} UTC` : "All times"}</strong>
          <span class="muted">${formats.duration(bucketS)} a bar</span>
          ${given && html`<button class="link" onClick=${() => { setPlaying(false); changed(""); }}>Show all times</button>`}
        </div>
        <div class="brush" ref=${chart} ...${drag}>
          <svg viewBox=${`0 0 ${buckets} 100`} preserveAspectRatio="none" aria-hidden="true">
            ${heights.map((height, index) => height > 0 && html`
              <rect class=${index >= low && index < high ? "bar" : "bar out"} x=${index + 0.08} width="0.84"
                y=${100 - height} height=${height} />`)}
          </svg>
          <div class="brush-range" style=${{ left: share(low), width: share(high - low) }}>
            <${Handle} label="Start of the time range" value=${low} max=${buckets - 1} text=${formats.time(from + low * bucketMs)}
              moved=${(value) => set(Math.min(value, high - 1), high)} />
            <${Handle} label="End of the time range" value=${high} max=${buckets} text=${formats.time(from + high * bucketMs)}
              moved=${(value) => set(low, Math.max(value, low + 1))} />
          </div>
        </div>
        <div class="time-axis muted" aria-hidden="true">
          ${axis(from, to, isNarrow ? 5 : 9).map(({ place, words }) => html`<span style=${{ left: `${place}%` }}>${words}</span>`)}
        </div>
      </div>
    </section>`;
}

function until([start, end]) {
  return formats.date(start) === formats.date(end) ? formats.clock(end) : formats.time(end);
}

/** The end of a range, which arrow keys move. */
function Handle({ label, value, max, text, moved }) {
  const keys = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
  return html`<div class="handle" role="slider" tabindex="0" aria-label=${label} aria-valuemin="0" aria-valuemax=${max}
    aria-valuenow=${value} aria-valuetext=${`${text} UTC`} onKeyDown=${(event) => {
      const steps = event.key === "Home" ? -max : event.key === "End" ? max : keys[event.key];
      if (steps === undefined) return;
      event.preventDefault();
      moved(Math.max(0, Math.min(max, value + steps)));
    }} />`;
}

/** Handlers that draw a range, or move the one that a pointer takes, or one of its ends. */
function useBrush(chart, buckets, set, began) {
  const dragged = useRef(null);
  const place = (event) => {
    const box = chart.current.getBoundingClientRect();
    return Math.max(0, Math.min(buckets, ((event.clientX - box.left) / box.width) * buckets));
  };
  return {
    onPointerDown(event) {
      if (event.button) return;
      began();
      chart.current.setPointerCapture(event.pointerId);
      dragged.current = place(event);
      set(Math.floor(dragged.current), Math.floor(dragged.current) + 1);
    },
    onPointerMove(event) {
      if (dragged.current === null) return;
      const [low, high] = [dragged.current, place(event)].sort((a, b) => a - b);
      set(Math.floor(low), Math.ceil(high));
    },
    onPointerUp() { dragged.current = null; },
    onPointerCancel() { dragged.current = null; },
  };
}

function histogram(series, { from, bucketMs, buckets }) {
  const counts = new Float64Array(buckets);
  series?.times.forEach((at, index) => {
    const bucket = Math.floor((at - from) / bucketMs);
    if (bucket >= 0 && bucket < buckets) counts[bucket] += series.observations[index];
  });
  const most = Math.max(...counts, 1);
  return Array.from(counts, (one) => (one ? Math.max(3, (94 * one) / most) : 0));
}

/** Ticks of the time axis: at most so many as wanted. */
export function axis(from, to, wanted) {
  const size = SIZES_S.find((one) => (to - from) / 1000 / one <= wanted) ?? (to - from) / 1000 / wanted;
  const found = [];
  for (let at = Math.ceil(from / 1000 / size) * size * 1000; at <= to; at += size * 1000) {
    const words = size < 86400 ? (at % 86400000 === 0 ? formats.date(at).slice(0, -5) : formats.clock(at))
      : size < 2592000 ? formats.date(at).slice(0, -5) : formats.date(at).slice(-8);
    const place = (100 * (at - from)) / (to - from);
    if (place > 3 && place < 94) found.push({ place, words });  // Others would be cut off.
  }
  return found;
}

const icon = (path) => html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d=${path} /></svg>`;
const PLAY = icon("M8 5v14l11-7z"), PAUSE = icon("M6 5h4v14H6zm8 0h4v14h-4z");
const BACK = icon("M18 6v12l-8.5-6zM6 6h2v12H6z"), FORWARD = icon("M6 18l8.5-6L6 6zM16 6h2v12h-2z");
