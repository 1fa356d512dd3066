// The page: what is asked, the map, the time, watches and the cluster.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { collection, datasetsOf, firstDataset, get } from "./api.js";
import { AskPanel } from "./ask.js";
import { COUNT, STATISTICS, TopBar } from "./bar.js";
import { cellsRequest, isPatchy, numeric, readCells, useScale } from "./cells.js";
import { ChannelsPanel, useSubscriptions } from "./channels.js";
import { ClusterPanel, health } from "./cluster.js";
import * as conditions from "./conditions.js";
import { CellPanel } from "./detail.js";
import * as formats from "./formats.js";
import { change, fragment } from "./fragment.js";
import { bounds } from "./geohash.js";
import { NARROW, useAnswer, useFragment, useMedia } from "./hooks.js";
import { NO_CELLS } from "./map.js";
import { CellTable } from "./table.js";
import { TimeSlider, bucketSeconds } from "./time.js";
import { TokenDialog } from "./token.js";
import { MapArea, MapNotice } from "./view.js";
import { WatchesPanel, useWatches } from "./watches.js";

const MOVE_DELAY_MS = 120;
const LOOK_EVERY_MS = 5_000;
const NO_SUBSCRIPTIONS = [];
const NEWS_MS = 1_500, ANNOUNCE_MS = 5_000;
const PANELS = [["watches", "Watches"], ["channels", "Channels"], ["cell", "Cell"], ["cells", "Cells"], ["cluster", "Cluster"]];

/** The page, anew for each token, since another one may see other things. */
function Root() {
  const [tokens, setTokens] = useState(0);
  const [isOpen, setOpen] = useState(false);
  const open = () => setOpen(true), close = () => setOpen(false);
  return html`<${App} key=${tokens} openToken=${open} />
    <${TokenDialog} ...${{ isOpen, open, close }} changed=${() => setTokens((one) => one + 1)} />`;
}

function App({ openToken }) {
  const shown = useFragment();
  const { dataset, statistic, filter, time, cell } = shown;
  const panel = PANELS.some(([name]) => name === shown.panel) ? shown.panel : "watches";
  const isPhone = useMedia(NARROW);
  const theme = useTheme(shown.theme);
  const [sheet, setSheet] = useState("map");
  const [draft, setDraft] = useState(filter);
  const [view, setView] = useState(null);
  const [drawing, setDrawing] = useState(null);  // {kind, sheet}: for which part of the page
  const [area, setArea] = useState(null);
  const [news, setNews] = useState(0);
  const [words, announce] = useAnnouncement();
  const map = useRef(null);
  useEffect(() => setDraft(filter), [filter, dataset]);

  const answers = useAnswers({ ...shown, view, news });
  const { collections, summary, cells, cluster, asked, extent, bucketS } = answers;
  const features = numeric(summary.value);
  const feature = features.find(({ name }) => name === answers.colour);
  const onMap = cells.value?.cells ?? NO_CELLS;
  const scope = `${dataset} ${asked?.statistics ?? ""} ${filter}`;
  const [scale, refit] = useScale(onMap, { scope, isCount: !feature });
  const region = useMemo(() => conditions.parse(draft)?.find(conditions.isRegion) ?? null, [draft]);
  useFirstDataset(dataset, collections.value);

  const open = (name) => { if (name !== "map" && name !== "ask") change({ panel: name }); setSheet(name); };
  const choose = useCallback((name, isMoved = false) => {
    change({ cell: name });
    if (!name) return;
    open("cell");
    if (isMoved) map.current.moveTo(centre(bounds(name)));
  }, []);
  const drawFor = (sheet) => ({
    drawing: drawing?.sheet === sheet ? drawing.kind : null,
    draw(kind) { map.current.draw(kind); setDrawing(kind && { kind, sheet }); if (kind) setSheet("map"); },
  });
  const drawn = (condition) => {
    setDrawing(null);
    setSheet(drawing.sheet);
    if (drawing.sheet === "ask") setDraft((text) => withRegion(text, condition));
    else setArea(condition);
  };
  const show = (text, other = dataset) => {
    change({ dataset: other, filter: text.trim(), ...(other === dataset ? {} : { cell: "", time: "", at: "" }) });
    setSheet("map");
  };
  const isPlaced = useFirstView(map, dataset, summary.value, setView);
  const moved = (next) => {
    if (!isPlaced.current) return;
    setView(next);
    change({ at: [next.longitude.toFixed(3), next.latitude.toFixed(3), next.zoom.toFixed(2)].join() });
  };

  const timer = useRef(0);
  const renewCells = () => { timer.current ||= setTimeout(() => { timer.current = 0; setNews((one) => one + 1); }, NEWS_MS); };
  const watches = useWatches((query, data) => {
    const ended = data.withdrawn?.length ?? 0, words = ended ? `, ${formats.count(ended)} withdrawn` : "";
    announce(`${formats.counted(data.count, "new label")}${words} of the watch of ${query.dataset}.`);
    if (query.dataset !== fragment().dataset) return;
    if (ended) map.current.unring(data.withdrawn.map(({ properties }) => properties.geohash));
    map.current.ring(data.features.map(({ properties }) => properties.geohash));
    renewCells();
  });
  const subscriptions = useSubscriptions(shown.subscriptions, {
    isShown: panel === "channels",
    arrived({ key, id }, found, isOld) {
      const places = found.filter(({ geometry, left }) => geometry && !left).map(({ geometry }) => geometry.coordinates);
      map.current.addPoints(key, places, !isOld);
      if (isOld) return;
      announce(`${formats.counted(found.length, "new notification")} of the subscription ${id}.`);
      renewCells();
    },
  });
  useOnMap(map, { onMap, scale, cell, theme, regions: [region, area], subscriptions: subscriptions.list.value ?? NO_SUBSCRIPTIONS });
  const badge = (name) => {
    const fresh = Object.values({ watches, channels: subscriptions }[name]?.found ?? {}).reduce((sum, one) => sum + one.fresh, 0);
    return fresh > 0 && html` <span class="badge">${formats.count(fresh)}</span>`;
  };
  const locate = (other, label) => {
    if (other !== dataset) show("", other);
    map.current.fit(bounds(label.properties.geohash), { zoomMax: 7 });
    map.current.ring([label.properties.geohash]);
    setSheet("map");
  };
  const locatePlace = ([longitude, latitude]) => { map.current.moveTo({ longitude, latitude }); setSheet("map"); };

  const missing = cells.value ? cells.value.missing : null;
  const pill = health({ status: cluster.value, missing, problem: cluster.problem ?? collections.problem });
  const unit = feature?.unit ?? "", noun = feature ? formats.named(feature.name) : "observations";
  const title = feature ? `${noun}, ${STATISTICS[statistic] ?? statistic}` : noun;
  const isKeyed = (name) => Boolean(collections.value?.find(({ id }) => id === name)?.key);
  const begun = (ccq) => { watches.begin(ccq, isKeyed(ccq.dataset)); open("watches"); announce("The watch has begun."); };
  const shared = { dataset, summary: summary.value, filter, time };
  const bodies = {
    watches: () => html`<${WatchesPanel} ...${{ watches, dataset, announce, locate }}
      show=${(other, text) => show(text, other)} />`,
    channels: () => html`<${ChannelsPanel} ...${{ subscriptions, dataset, area, setArea, announce }} ...${drawFor("channels")}
      seen=${(kind) => map.current.seen(kind)} locate=${locatePlace} />`,
    cell: () => html`<${CellPanel} ...${shared} ...${{ cell, bucketS, extent }}
      version=${answers.version} close=${() => change({ cell: "" })} />`,
    cells: () => html`<${CellTable} cells=${onMap} unit=${unit} words=${noun} selected=${cell}
      choose=${(name) => choose(name, true)} />`,
    cluster: () => html`<${ClusterPanel} cluster=${cluster} />`,
  };
  return html`<div class="page" data-sheet=${isPhone ? sheet : "none"}>
    <${TopBar} datasets=${(collections.value ?? []).map(({ id }) => id)} who=${answers.who.value?.name ?? ""}
      ...${{ dataset, features, feature, statistic, pill, theme, openToken }} openCluster=${() => open("cluster")} />
    <aside class="left panel" aria-label="Ask">
      <${AskPanel} ...${shared} ...${{ draft, setDraft, show }} ...${drawFor("ask")} problem=${cells.problem} watched=${begun} />
    </aside>
    <main class="map-area">
      <${MapArea} ...${{ map, onMap, scale, refit, title, unit, feature, choose, drawn, moved }} />
      <${MapNotice} ...${{ collections, dataset, summary, cells, filter, time, map, openToken }} who=${answers.who.value}
        problem=${collections.problem ?? cells.problem ?? summary.problem} />
    </main>
    <aside class="right panel">
      <nav class="tabs" role="tablist" aria-label="Panels" onKeyDown=${moveTab}>
        ${PANELS.map(([name, one]) => html`<button role="tab" id=${`tab-${name}`} aria-selected=${panel === name}
          aria-controls="panel" tabindex=${panel === name ? 0 : -1} onClick=${() => open(name)}>${one}${badge(name)}</button>`)}
      </nav>
      <div id="panel" class="scroll" role="tabpanel" aria-labelledby=${`tab-${panel}`} tabindex="0">${bodies[panel]()}</div>
    </aside>
    <footer class="bottom">
      ${extent && bucketS > 0 && html`<${TimeSlider} ...${{ extent, bucketS, time }} series=${answers.series.value}
        isReady=${!cells.isPending} changed=${(next) => change({ time: next })} />`}
    </footer>
    ${isPhone && html`<nav class="views" aria-label="Views">
      ${[["map", "Map"], ["ask", "Ask"], ...PANELS].map(([name, one]) => html`
        <button aria-pressed=${sheet === name} onClick=${() => open(name)}>${one}${badge(name)}</button>`)}
    </nav>`}
    <div class="sr" role="status" aria-live="polite">${words}</div>
  </div>`;
}

/** What the gateway answers about all that is shown. */
function useAnswers({ dataset, colour: chosenColour, statistic, filter, time, view, news }) {
  const every = { everyMs: LOOK_EVERY_MS };
  const collections = useAnswer(async (signal) => datasetsOf(await get("collections", {}, { signal })), [], every);
  const cluster = useAnswer((signal) => get("cluster", {}, { signal }), [], every);
  const who = useAnswer((signal) => get("whoami", {}, { signal }), []);
  const summary = useAnswer(
    (signal) => get(collection(dataset, "/summary"), {}, { signal }), [dataset, news],
    { ...every, isEnabled: dataset !== "", scope: dataset },
  );
  const schema = collections.value?.find(({ id }) => id === dataset);
  // Another version: there are other cells. Replaced observations do not change their number.
  const version = schema?.key ? `${news} ${JSON.stringify(summary.value)}` : summary.value?.observations;
  const colour = colourOf(numeric(summary.value), chosenColour);
  const [patchy, setPatchy] = useState({});
  const patchyFrom = patchy[dataset];
  const asked = useMemo(
    () => cellsRequest({ view, schema, summary: summary.value, patchyFrom, colour, statistic, filter, time }),
    [view, schema?.geohashPrecision, version, patchyFrom, colour, statistic, filter, time],
  );
  const cells = useAnswer(
    (signal) => readCells(dataset, asked, signal), [asked && JSON.stringify(asked), version],
    { isEnabled: asked !== null, delayMs: MOVE_DELAY_MS, scope: `${dataset} ${asked?.statistics ?? ""}` },
  );
  useEffect(() => {
    const { cells: found } = cells.value ?? { cells: NO_CELLS };
    if (filter || !isPatchy(found)) return;
    setPatchy((all) => ({ ...all, [dataset]: Math.min(all[dataset] ?? Infinity, found.precision) }));
  }, [cells.value]);
  const extent = useMemo(() => summary.value?.extent?.interval.map(Date.parse) ?? null, [dataset, version]);
  const bucketS = extent && schema ? bucketSeconds(extent, schema.timeBucket) : 0;
  const series = useAnswer(
    async (signal) => {
      const { columns } = await get(collection(dataset, "/series"), { window: `${bucketS}s`, filter }, { signal });
      return { times: columns.time.map(Date.parse), observations: columns.observations };
    }, [bucketS, filter, version], { isEnabled: bucketS > 0, scope: dataset },
  );
  return { collections, cluster, who, summary, version, colour, cells, asked, extent, bucketS, series };
}

/** The feature that colours the cells: the chosen one, COUNT for none, or the first one. */
function colourOf(features, chosen) {
  if (chosen === COUNT || features.some(({ name }) => name === chosen)) return chosen;
  return features.find(({ type }) => type !== "bool")?.name ?? COUNT;
}

/** Shows on the map what the page shows. */
function useOnMap(map, { onMap, scale, cell, theme, regions, subscriptions }) {
  const keys = subscriptions.map(({ key }) => key), before = useRef([]);

  useEffect(() => map.current.setCells(onMap, scale), [onMap, scale]);
  useEffect(() => map.current.select(cell), [cell]);
  useEffect(() => map.current.restyle(), [theme]);
  useEffect(() => map.current.showRegions(regions.filter(Boolean).map(conditions.geometry)), regions);
  useEffect(() => {
    map.current.showAreas(subscriptions.flatMap(({ areas }) => areas));
    for (const key of before.current.filter((one) => !keys.includes(one))) map.current.removePoints(key);
    before.current = keys;
  }, [subscriptions]);
}

/** Chooses the first dataset that holds observations, if the address names none. */
function useFirstDataset(dataset, collections) {
  useEffect(() => {
    if (!dataset && collections?.length) change({ dataset: firstDataset(collections) });
  }, [dataset, collections?.length]);
}

/** Fits the map to a dataset, unless the address has a place; a reference to whether that was done. */
function useFirstView(map, dataset, summary, setView) {
  const at = useRef(fragment().at).current;
  const fitted = useRef(""), isPlaced = useRef(at !== "");
  useEffect(() => {
    if (!summary?.extent || fitted.current === dataset) return;
    const isFirst = fitted.current === "";
    fitted.current = dataset;
    if (!at || !isFirst) map.current.fit(summary.extent.bbox, { isAnimated: !isFirst });
    isPlaced.current = true;
    if (isFirst) setView(map.current.view());
  }, [summary, dataset]);
  return isPlaced;
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

function withRegion(text, condition) {
  const known = conditions.parse(text);
  if (!known) return `(${text}) AND ${conditions.text([condition])}`;
  return conditions.text([...known.filter((one) => !conditions.isRegion(one)), condition]);
}

function centre([west, south, east, north]) {
  return { longitude: (west + east) / 2, latitude: (south + north) / 2 };
}

/** Arrow keys move between tabs. */
function moveTab(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.querySelectorAll("[role=tab]")];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Root} />`, place);
