// The page: what is asked, the map, the time, watches and the cluster.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { address, collection, get, send } from "./api.js";
import { AskPanel } from "./ask.js";
import { ClusterPanel, health } from "./cluster.js";
import { GRADIENT, scaleOf } from "./colours.js";
import * as conditions from "./conditions.js";
import { CellPanel } from "./detail.js";
import * as formats from "./formats.js";
import { change, fragment } from "./fragment.js";
import { bounds, cellSize, snapped } from "./geohash.js";
import { useAnswer, useFragment, useMedia } from "./hooks.js";
import * as icons from "./icons.js";
import { Cells, MapView, NO_CELLS } from "./map.js";
import { CellTable } from "./table.js";
import { TimeSlider, bucketSeconds, datetime } from "./time.js";
import { TokenDialog } from "./token.js";
import { WatchesPanel, useWatches } from "./watches.js";

const CELL_PX = 5;
const MOVE_DELAY_MS = 120;
const CLUSTER_EVERY_MS = 4_000, SUMMARY_EVERY_MS = 5_000, COLLECTIONS_EVERY_MS = 5_000;
const NEWS_MS = 1_500, ANNOUNCE_MS = 5_000;
const PANELS = [["watches", "Watches"], ["cell", "Cell"], ["cells", "Cells"], ["cluster", "Cluster"]];

/** The page, anew for each token, since another one may see other things. */
function Root() {
  const [tokens, setTokens] = useState(0);
  const [isTokenOpen, setTokenOpen] = useState(false);
  return html`<${App} key=${tokens} openToken=${() => setTokenOpen(true)} />
    <${TokenDialog} isOpen=${isTokenOpen} open=${() => setTokenOpen(true)} close=${() => setTokenOpen(false)} changed=${() => setTokens((one) => one + 1)} />`;
}

function App({ openToken }) {
  const shown = useFragment();
  const { dataset, colour, statistic, filter, time, cell } = shown;
  const panel = PANELS.some(([name]) => name === shown.panel) ? shown.panel : "watches";
  const isPhone = useMedia("(max-width: 800px)");
  const theme = useTheme(shown.theme);
  const [sheet, setSheet] = useState("map");
  const [draft, setDraft] = useState(filter);
  const [view, setView] = useState(null);
  const [drawing, setDrawing] = useState(null);
  const [news, setNews] = useState(0);
  const [words, announce] = useAnnouncement();
  const map = useRef(null);
  useEffect(() => setDraft(filter), [filter, dataset]);

  // --- answers ---------------------------------------------------------------------------------
  const collections = useAnswer(
    async (signal) => (await get("collections", {}, { signal })).collections, [], { everyMs: COLLECTIONS_EVERY_MS },
  );
  useFirstDataset(dataset, collections.value);
  const schema = collections.value?.find(({ id }) => id === dataset);
  const summary = useAnswer(
    (signal) => get(collection(dataset, "/summary"), {}, { signal }),
    [dataset, news], { isEnabled: dataset !== "", everyMs: SUMMARY_EVERY_MS, scope: dataset },
  );
  const features = summary.value?.features.filter(({ indexed, type }) => indexed && type !== "text") ?? [];
  const feature = features.find(({ name }) => name === colour);
  const version = summary.value?.observations;
  const asked = useMemo(() => cellsRequest({ view, schema, summary: summary.value, colour, statistic, filter, time }),
    [view, schema?.geohashPrecision, version, colour, statistic, filter, time]);
  const cells = useAnswer(
    (signal) => readCells(dataset, asked, signal), [asked && JSON.stringify(asked), version],
    { isEnabled: asked !== null, delayMs: MOVE_DELAY_MS, scope: `${dataset} ${asked?.statistics ?? ""}` },
  );
  const extent = summary.value?.extent?.interval.map(Date.parse) ?? null;
  const bucketS = extent && schema ? bucketSeconds(extent, schema.timeBucket) : 0;
  const series = useAnswer(
    async (signal) => {
      const { columns } = await get(collection(dataset, "/series"), { window: `${bucketS}s`, filter }, { signal });
      return { times: columns.time.map(Date.parse), observations: columns.observations };
    }, [dataset, bucketS, filter, version], { isEnabled: bucketS > 0, scope: dataset },
  );
  const cluster = useAnswer((signal) => get("cluster", {}, { signal }), [], { everyMs: CLUSTER_EVERY_MS });
  const who = useAnswer((signal) => get("whoami", {}, { signal }), []);

  // --- the map ---------------------------------------------------------------------------------
  const onMap = cells.value?.cells ?? NO_CELLS;
  const [scale, refit] = useScale(onMap, { scope: `${dataset} ${asked?.statistics ?? ""} ${filter}`, isCount: !feature });
  useEffect(() => { if (map.current && scale) map.current.setCells(onMap, scale); }, [onMap, scale, view === null]);
  useEffect(() => { if (map.current && !onMap.length) map.current.setCells(NO_CELLS, scale ?? { pixel: () => 0 }); }, [onMap]);
  useEffect(() => map.current?.select(cell), [cell, view === null]);
  useEffect(() => map.current?.restyle(), [theme]);
  const region = useMemo(() => conditions.parse(draft)?.find(conditions.isRegion) ?? null, [draft]);
  useEffect(() => map.current?.showRegion(region), [region, view === null]);
  useFirstView(map, dataset, summary.value);

  const choose = useCallback((name, isMoved = false) => {
    change({ cell: name, ...(name ? { panel: "cell" } : {}) });
    if (name && isMoved) {
      const [west, south, east, north] = bounds(name);
      map.current?.moveTo({ longitude: (west + east) / 2, latitude: (south + north) / 2 });
    }
    if (name) setSheet((one) => (one === "map" ? "cell" : one === "cells" ? "cell" : one));
  }, []);
  const draw = (kind) => { map.current?.draw(kind); setDrawing(kind); if (kind) setSheet("map"); };
  const drawn = (condition) => {
    setDrawing(null);
    setDraft((text) => {
      const known = conditions.parse(text);
      const others = known?.filter((one) => !conditions.isRegion(one));
      return known ? conditions.text([...others, condition]) : `(${text}) AND ${conditions.text([condition])}`;
    });
    if (isPhone) setSheet("ask");
  };
  const show = (text, other = dataset) => {
    change({ dataset: other, filter: text.trim(), ...(other === dataset ? {} : { cell: "", time: "", at: "" }) });
    if (isPhone) setSheet("map");
  };

  // --- watches ---------------------------------------------------------------------------------
  const throttle = useRef(0);
  const watches = useWatches((query, data) => {
    announce(`${formats.counted(data.count, "new label")} of the watch of ${query.dataset}.`);
    if (query.dataset !== shown.dataset) return;
    map.current?.ring(data.features.map(({ properties }) => bounds(properties.geohash)));
    if (!throttle.current) {
      throttle.current = setTimeout(() => { throttle.current = 0; setNews((one) => one + 1); }, NEWS_MS);
    }
  });
  const fresh = Object.values(watches.found).reduce((sum, one) => sum + one.fresh, 0);

  const missing = cells.value ? cells.value.missing : null;
  const problem = collections.problem ?? cells.problem ?? summary.problem;
  const pill = health({ status: cluster.value, missing, problem: cluster.problem ?? collections.problem });
  const unit = feature ? feature.unit : "";
  const title = feature ? `${formats.named(feature.name)}, ${WORDS[statistic] ?? statistic}` : "observations";
  const body = {
    ask: () => html`<${AskPanel} ...${{ dataset, summary: summary.value, filter, draft, setDraft, show, draw, drawing, time }} problem=${cells.problem}
      watched=${(ccq) => { watches.begin(ccq); change({ panel: "watches" }); setSheet("watches"); announce("The watch has begun."); }} />`,
    watches: () => html`<${WatchesPanel} watches=${watches} dataset=${dataset} announce=${announce} show=${(other, text) => show(text, other)}
      locate=${(other, label) => { if (other !== dataset) show("", other); locate(map.current, label); if (isPhone) setSheet("map"); }} />`,
    cell: () => html`<${CellPanel} ...${{ dataset, summary: summary.value, cell, filter, time, bucketS, version }} extent=${extent ?? [0, 1]} close=${() => change({ cell: "" })} />`,
    cells: () => html`<${CellTable} cells=${onMap} unit=${unit} words=${feature ? formats.named(feature.name) : "observations"} selected=${cell} choose=${(name) => choose(name, true)} />`,
    cluster: () => html`<${ClusterPanel} cluster=${cluster} />`,
  };
  return html`
    <div class="page" data-sheet=${isPhone ? sheet : "none"}>
      <header class="top">
        <h1>${LOGO}<span>Galileo</span></h1>
        <label class="pick"><select aria-label="Dataset" value=${dataset} onChange=${(event) => change({ dataset: event.target.value, cell: "", time: "", filter: "", at: "", colour: "" })}>
            ${!dataset && html`<option value="">No dataset</option>`}
            ${dataset && !schema && html`<option value=${dataset}>${dataset}</option>`}
            ${(collections.value ?? []).map(({ id }) => html`<option value=${id}>${id}</option>`)}
          </select></label>
        <label class="pick colour"><span>coloured by</span>
          <select aria-label="Coloured by" value=${feature ? colour : ""} onChange=${(event) => change({ colour: event.target.value || COUNT })}>
            ${features.map(({ name, unit: of }) => html`<option value=${name}>${formats.named(name)}${of ? ` (${of})` : ""}</option>`)}
            <option value="">observations</option>
          </select></label>
        ${feature && html`<label class="pick"><select aria-label="Statistic" value=${statistic} onChange=${(event) => change({ statistic: event.target.value })}>
            ${Object.entries(WORDS).map(([name, one]) => html`<option value=${name}>${one}</option>`)}
          </select></label>`}
        <span class="space"></span>
        <button class=${`pill ${pill.level}`} onClick=${() => { change({ panel: "cluster" }); setSheet("cluster"); }}><i aria-hidden="true"></i>${pill.words}</button>
        <button class="icon" aria-label=${who.value?.name ? `Signed in as ${who.value.name}; change the token` : "Use a token"} title=${who.value?.name || "Use a token"}
          onClick=${openToken}>${icons.KEY}${who.value?.name && html`<span class="who">${who.value.name}</span>`}</button>
        <button class="icon" aria-label=${theme === "dark" ? "Use light colours" : "Use dark colours"} title=${theme === "dark" ? "Light colours" : "Dark colours"}
          onClick=${() => change({ theme: theme === "dark" ? "light" : "dark" })}>${theme === "dark" ? icons.SUN : icons.MOON}</button>
      </header>
      <aside class="left panel" aria-label="Ask">${body.ask()}</aside>
      <main class="map-area">
        <${MapArea} ...${{ map, onMap, scale, refit, title, unit, feature, choose, drawn, view, setView }} />
        <${MapNotice} ...${{ collections, dataset, summary, cells, problem, filter, time, map }} />
      </main>
      <aside class="right panel">
        <nav class="tabs" role="tablist" aria-label="Panels" onKeyDown=${tabKeys}>${PANELS.map(([name, one]) => html`<button role="tab" id=${`tab-${name}`} aria-selected=${panel === name}
          aria-controls="panel" tabindex=${panel === name ? 0 : -1} onClick=${() => change({ panel: name })}>${one}${name === "watches" && fresh > 0 && html`<span class="badge">${formats.count(fresh)}</span>`}</button>`)}</nav>
        <div id="panel" class="scroll" role="tabpanel" aria-labelledby=${`tab-${panel}`} tabindex="0">${body[panel]()}</div>
      </aside>
      <footer class="bottom">${extent && bucketS > 0 && html`<${TimeSlider} ...${{ extent, bucketS, time }} series=${series.value} isReady=${!cells.isPending} changed=${(next) => change({ time: next })} />`}</footer>
      ${isPhone && html`<nav class="views" aria-label="Views">${[["map", "Map"], ["ask", "Ask"], ...PANELS].map(([name, one]) => html`<button aria-pressed=${sheet === name}
        onClick=${() => { setSheet(name); if (name !== "map" && name !== "ask") change({ panel: name }); }}>${one}${name === "watches" && fresh > 0 && html`<span class="badge">${formats.count(fresh)}</span>`}</button>`)}</nav>`}
      <div class="sr" role="status" aria-live="polite">${words}</div>
    </div>`;
}

const COUNT = "observations";
const WORDS = { mean: "mean", min: "least", max: "greatest" };
const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true"><rect x="3" y="3" width="12" height="12" rx="2" fill="#3b528b" /><rect x="17" y="3" width="12" height="12" rx="2" fill="#21918c" /><rect x="3" y="17" width="12" height="12" rx="2" fill="#5ec962" /><rect x="17" y="17" width="12" height="12" rx="2" fill="#fde725" /></svg>`;

function tabKeys(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.querySelectorAll("[role=tab]")];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}

/** The parameters of a request for the cells of a view; null while too little is known. */
function cellsRequest({ view, schema, summary, colour, statistic, filter, time }) {
  if (!view || !schema || !summary?.extent) return null;
  const precision = precisionOf(view, schema.geohashPrecision);
  const isKnown = summary.features.some(({ name, indexed, type }) => name === colour && indexed && type !== "text");
  return {
    precision, filter, datetime: datetime(time),
    statistics: isKnown ? `${colour}:${statistic}` : "",
    bbox: boxOf(view, summary.extent.bbox, precision),
  };
}

/** The finest cells that are large enough to be seen, and no finer than those of the dataset. */
function precisionOf({ pixelsPerDegree, latitude }, finest) {
  const stretch = 1 / Math.cos((Math.min(80, Math.abs(latitude)) * Math.PI) / 180);
  for (let precision = finest; precision > 1; precision -= 1) {
    const [width, height] = cellSize(precision);
    if (Math.sqrt(width * height * stretch) * pixelsPerDegree >= CELL_PX) return precision;
  }
  return 1;
}

/** The box to ask for: larger than the view, so that it serves for small moves; "" for all. */
function boxOf({ bbox }, extent, precision) {
  const [west, south, east, north] = bbox, width = (east - west) / 4, height = (north - south) / 4;
  const wide = [west - width, Math.max(-90, south - height), east + width, Math.min(90, north + height)];
  if (wide[2] - wide[0] >= 360) return "";
  const shift = Math.round((wide[0] + wide[2]) / 720) * 360;
  const box = snapped([wide[0] - shift, wide[1], wide[2] - shift, wide[3]], Math.max(1, precision - 2));
  const isAll = box[0] <= extent[0] && box[1] <= extent[1] && box[2] >= extent[2] && box[3] >= extent[3];
  return isAll ? "" : box.join();
}

async function readCells(dataset, asked, signal) {
  const answer = await send(address(collection(dataset, "/cells"), asked), { signal, headers: { Accept: "application/json" } });
  const { columns, missing } = await answer.json();
  const values = asked.statistics ? columns[asked.statistics.replace(":", "_")] : columns.observations;
  const cells = new Cells(columns.cell, Float64Array.from(values, (one) => (one === null ? NaN : one)), columns.observations);
  return { cells, missing: missing.length };
}

/** Chooses the first dataset that holds observations, if the address names none. */
function useFirstDataset(dataset, collections) {
  useEffect(() => {
    if (dataset || !collections?.length) return undefined;
    const aborting = new AbortController();
    (async () => {
      for (const { id } of collections) {
        const found = await get(collection(id, "/summary"), {}, { signal: aborting.signal }).catch(() => null);
        if (aborting.signal.aborted) return;
        if (found?.observations) return change({ dataset: id });
      }
      change({ dataset: collections[0].id });
    })();
    return () => aborting.abort();
  }, [dataset, collections?.length]);
}

/** Fits the map to a dataset, and chooses its first feature, unless the address says what to show. */
function useFirstView(map, dataset, summary) {
  const fitted = useRef(""), at = useRef(fragment().at).current;
  useEffect(() => {
    if (!map.current || !summary?.extent || fitted.current === dataset) return;
    const isFirst = fitted.current === "";
    fitted.current = dataset;
    if (!at || !isFirst) map.current.fit(summary.extent.bbox, { isAnimated: !isFirst });
    const first = summary.features.find(({ indexed, type }) => indexed && (type === "float" || type === "int"));
    if (first && !fragment().colour) change({ colour: first.name });
  }, [summary, dataset]);
}

/** The scale of the cells. It stays while the map moves or time plays, until `refit` is called. */
function useScale(cells, { scope, isCount }) {
  const kept = useRef({ scope: "", scale: null });
  const [, renew] = useState(0);
  if (kept.current.scope !== scope) kept.current = { scope, scale: null };
  if (!kept.current.scale && cells.length) kept.current.scale = scaleOf(cells.values, { isCount });
  return [kept.current.scale, () => { kept.current.scale = scaleOf(cells.values, { isCount }); renew((one) => one + 1); }];
}

function useTheme(chosen) {
  const isDark = useMedia("(prefers-color-scheme: dark)");
  const theme = chosen || (isDark ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  return theme;
}

/** A text for screen readers, which changes at most every five seconds. */
function useAnnouncement() {
  const [words, set] = useState("");
  const last = useRef({ at: -ANNOUNCE_MS, timer: 0 });
  const announce = useCallback((text) => {
    clearTimeout(last.current.timer);
    const wait = Math.max(0, last.current.at + ANNOUNCE_MS - performance.now());
    last.current.timer = setTimeout(() => { last.current.at = performance.now(); set(text); }, wait);
  }, []);
  return [words, announce];
}

function locate(map, { geometry }) {
  const ring = geometry.coordinates[0];
  const longitudes = ring.map(([longitude]) => longitude), latitudes = ring.map(([, latitude]) => latitude);
  const box = [Math.min(...longitudes), Math.min(...latitudes), Math.max(...longitudes), Math.max(...latitudes)];
  map?.fit(box, { zoomMax: 7 });
  map?.ring([box]);
}

// --- the map and what lies over it ---------------------------------------------------------------

function MapArea({ map, onMap, scale, refit, title, unit, feature, choose, drawn, view, setView }) {
  const element = useRef(null);
  const [pointed, setPointed] = useState(null);
  const calls = useRef({});
  calls.current = { onMap, choose, drawn };
  useEffect(() => {
    const made = new MapView(element.current, {
      moved(next) {
        setView(next);
        change({ at: [next.longitude.toFixed(3), next.latitude.toFixed(3), next.zoom.toFixed(2)].join() });
      },
      picked(longitude, latitude) { calls.current.choose(made.cellNear(longitude, latitude)); },
      drawn(condition) { calls.current.drawn(condition); },
      pointed: setPointed,
    });
    const follow = () => {
      const [longitude, latitude, zoom] = fragment().at.split(",").map(Number);
      if (Number.isFinite(longitude + latitude + zoom)) made.moveTo({ longitude, latitude, zoom });
    };
    follow();
    addEventListener("hashchange", follow);
    map.current = made;
    return () => { removeEventListener("hashchange", follow); made.map.setTarget(null); };
  }, []);
  const pick = (event) => {
    if (event.key === "Enter") map.current.pickCentre();
    if (event.key === "Escape") calls.current.choose("");
  };
  const name = pointed && map.current ? map.current.cellNear(pointed.longitude, pointed.latitude) : "";
  const index = name ? onMap.index(name) : undefined;
  return html`
    <div class="map" ref=${element} tabindex="0" role="application" onKeyDown=${pick}
      aria-label="Map of cells. Arrow keys move it, plus and minus zoom, Enter chooses the cell in the middle. The list of cells is under Cells."></div>
    <div class="zoom">
      <button class="icon" aria-label="Zoom in" title="Zoom in" onClick=${() => map.current.zoom(1)}>${icons.ADD}</button>
      <button class="icon" aria-label="Zoom out" title="Zoom out" onClick=${() => map.current.zoom(-1)}>${icons.REMOVE}</button>
      <button class="icon" aria-label="Show all cells" title="Show all cells" disabled=${!onMap.length} onClick=${() => map.current.fitCells()}>${icons.FIT}</button>
    </div>
    ${scale && onMap.length > 0 && html`<${Legend} scale=${scale} title=${title} unit=${unit} refit=${refit}
      value=${index === undefined ? null : onMap.values[index]} />`}
    ${index !== undefined && html`<div class="tip" style=${{ transform: `translate(${pointed.pixel[0] + 14}px, ${pointed.pixel[1] + 14}px)` }}>
      ${feature && html`<b>${formats.number(onMap.values[index], 0.01)} ${unit}</b> `}${formats.counted(onMap.observations[index], "observation")}
      <span class="muted mono">${name}</span></div>`}
    ${view && html`<p class="place muted" aria-hidden="true">${pointed ? formats.position(wrapped(pointed.longitude), pointed.latitude) : ""}</p>`}`;
}

function wrapped(longitude) {
  return ((((longitude + 180) % 360) + 360) % 360) - 180;
}

function Legend({ scale, title, unit, value, refit }) {
  const { low, high, isLog } = scale;
  const ticks = isLog ? powers(low, high) : formats.ticks(low, high, 5);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(low) / 100;
  const place = (at) => `${Math.min(100, Math.max(0, 100 * scale.share(at)))}%`;
  return html`<figure class="legend">
    <figcaption><b>${title}</b> <span class="muted">${unit}</span>
      <button class="link" title="Spread the colours over the values that the map shows now" onClick=${refit}>Fit colours</button></figcaption>
    <div class="ramp" role="img" aria-label=${`Colours from ${formats.number(low, step / 10)} to ${formats.number(high, step / 10)} ${unit}`} style=${{ backgroundImage: `linear-gradient(to right, ${GRADIENT})` }}>
      ${value !== null && !Number.isNaN(value) && html`<i class="mark" style=${{ left: place(value) }}></i>`}</div>
    <div class="ramp-ticks" aria-hidden="true">${ticks.map((at) => html`<span style=${{ left: place(at) }}>${isLog ? formats.count(at) : formats.number(at, step)}</span>`)}</div>
  </figure>`;
}

function powers(low, high) {
  const found = [];
  for (let at = 1; at <= high * 1.0001; at *= 10) {
    for (const one of [at, 2 * at, 5 * at]) if (one >= low && one <= high) found.push(one);
  }
  return found.length > 4 ? found.filter((one) => /^10*$/.test(String(one))) : found.length ? found : [low];
}

/** What there is to say over the map: problems, partial answers, and what to do where it is empty. */
function MapNotice({ collections, dataset, summary, cells, problem, filter, time, map }) {
  if (problem && problem.status !== 401 && problem.status !== 400) {
    const words = problem.status === 0 ? "The gateway does not answer. The map stays as it is, and the page keeps trying." : problem.message;
    return html`<div class="over top-notice" role="alert"><p class=${problem.isTransient ? "notice" : "problem"}>${words}</p></div>`;
  }
  if (collections.value?.length === 0) {
    return html`<div class="over"><div class="card"><h2>No dataset yet</h2>
      <p>A dataset holds observations: a position, a time, and values. Make one from a file, and the map shows it by itself:</p>
      <pre>galileo ingest weather FILE --create</pre>
      <p class="muted">FILE is CSV, Parquet, GRIB or NetCDF. To try made-up data: <code>scripts/demo --open</code></p></div></div>`;
  }
  if (summary.value && !summary.value.observations) {
    return html`<div class="over"><div class="card"><h2>${dataset} is empty</h2><p>The map shows observations as soon as there are some:</p>
      <pre>galileo ingest ${dataset} FILE</pre></div></div>`;
  }
  if (cells.value?.missing > 0) {
    return html`<div class="over top-notice" role="status"><p class="notice">Partial: ${formats.counted(cells.value.missing, "partition")} cannot be asked. What is shown is true but incomplete.</p></div>`;
  }
  if (cells.value && !cells.value.cells.length && !cells.isPending) {
    return html`<div class="over"><div class="card"><h2>Nothing here</h2>
      <p>No observation matches ${[filter && "the conditions", time && "the time range", "this part of the map"].filter(Boolean).join(", ")}.</p>
      <div class="row">${filter && html`<button onClick=${() => change({ filter: "" })}>Remove the conditions</button>`}
        ${time && html`<button onClick=${() => change({ time: "" })}>Show all times</button>`}
        <button onClick=${() => map.current.fit(summary.value.extent.bbox)}>Go to the data</button></div></div></div>`;
  }
  return cells.isPending || (dataset && !summary.value) ? html`<div class="progress" role="progressbar" aria-label="Reading"></div>` : null;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Root} />`, place);
