// The map: the base map, the cells, drawn regions, and rings around what is new.
//
// Geohash cells are rectangles parallel to the axes of the projection, so the layer of cells writes
// their pixels itself: a frame costs no more than its pixels, whatever the number of cells.

import { basemap } from "./basemap.js";
import { HALF, WORLD, bounds, encode, projectBox } from "./geohash.js";

const ol = globalThis.ol;
const GAP_PX = 16, SPARSE = 2_500, SPARSE_PX = 5;
const NEAR_PX = 5;
const RING_MS = 5_000, RINGS_MAX = 500, PULSE_MS = 1_250;
const BASE_AFTER_MS = 1_500;
const POINTS_MAX = 500;
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Cells as arrays: their edges in map units, their values, and where each one is. */
export class Cells {
  constructor(names, values, observations) {
    this.names = names;
    this.values = values;
    this.observations = observations;
    this.precision = names.length ? names[0].length : 0;
    this.edges = new Float64Array(4 * names.length);
    this._indexes = null;
    names.forEach((name, index) => this.edges.set(projectBox(bounds(name)), 4 * index));
  }

  get length() {
    return this.names.length;
  }

  index(name) {
    this._indexes ??= new Map(this.names.map((one, index) => [one, index]));
    return this._indexes.get(name);
  }
}

export const NO_CELLS = new Cells([], new Float64Array(), new Float64Array());

/** Writes cells, the selected one and rings to a canvas of its own. */
class CellPainter {
  constructor() {
    this.canvas = document.createElement("canvas");
    Object.assign(this.canvas.style, { position: "absolute", left: "0", top: "0", width: "100%", height: "100%" });
    this.cells = NO_CELLS;
    this.pixels = new Uint32Array();
    this.selected = "";
    this.rings = new Map();  // by cell: {box, until}
    this._outlines = [];
    this.colours = { selected: "#000", halo: "#fff", ring: "#f70" };
    this._context = this.canvas.getContext("2d");
    this._image = null;
  }

  paint({ size, pixelRatio, viewState }) {
    const [width, height] = size.map((length) => Math.round(length * pixelRatio));
    if (this.canvas.width !== width || this.canvas.height !== height || !this._image) {
      this.canvas.width = width;
      this.canvas.height = height;
      this._image = this._context.createImageData(width, height);
      this._words = new Uint32Array(this._image.data.buffer);
    }
    const resolution = viewState.resolution / pixelRatio;
    const frame = {
      width, height, resolution, ratio: pixelRatio,
      left: viewState.center[0] - (width / 2) * resolution,
      top: viewState.center[1] + (height / 2) * resolution,
    };
    this._words.fill(0);
    const first = Math.floor((frame.left + HALF) / WORLD);
    const last = Math.floor((frame.left + width * resolution + HALF) / WORLD);
    for (let world = first; world <= last; world += 1) this._fill(frame, world * WORLD);
    this._context.putImageData(this._image, 0, 0);
    for (let world = first; world <= last; world += 1) this._outline(frame, world * WORLD);
    return this.canvas;
  }

  _fill({ width, height, left, top, resolution, ratio }, shift) {
    const { edges, length } = this.cells, words = this._words, pixels = this.pixels;
    const least = (length < SPARSE ? SPARSE_PX : 1) * ratio, gapFrom = GAP_PX * ratio;
    for (let index = 0, at = 0; index < length; index += 1, at += 4) {
      let x0 = Math.round((edges[at] + shift - left) / resolution);
      let x1 = Math.round((edges[at + 2] + shift - left) / resolution);
      let y0 = Math.round((top - edges[at + 3]) / resolution);
      let y1 = Math.round((top - edges[at + 1]) / resolution);
      if (x1 < 0 || y1 < 0 || x0 > width || y0 > height) continue;
      if (x1 - x0 < least) { x0 = Math.round((x0 + x1 - least) / 2); x1 = x0 + least; }
      if (y1 - y0 < least) { y0 = Math.round((y0 + y1 - least) / 2); y1 = y0 + least; }
      if (x1 - x0 >= gapFrom && y1 - y0 >= gapFrom) { x1 -= 1; y1 -= 1; }
      if (x0 < 0) x0 = 0;
      if (y0 < 0) y0 = 0;
      if (x1 > width) x1 = width;
      if (y1 > height) y1 = height;
      const pixel = pixels[index];
      for (let row = y0 * width, end = y1 * width; row < end; row += width) {
        words.fill(pixel, row + x0, row + x1);
      }
    }
  }

  _outline(frame, shift) {
    if (this.selected) {
      this._lines(frame, shift, sides(projectBox(bounds(this.selected))), [[this.colours.halo, 5], [this.colours.selected, 2.5]]);
    }
    this._context.globalAlpha = still.matches ? 1 : 0.8 + 0.2 * Math.cos(performance.now() / PULSE_MS * 2 * Math.PI);
    this._lines(frame, shift, this._outlines, [[this.colours.halo, 5.5], [this.colours.ring, 3]]);
    this._context.globalAlpha = 1;
  }

  /** Rings cells, boxes by their names, until a time. */
  ring(boxes, until) {
    for (const [name, box] of boxes) this.rings.set(name, { box, until });
    this._outlines = outlines(this.rings);
  }

  /** Ends rings whose time is over. */
  endRings(now) {
    const before = this.rings.size;
    for (const [name, { until }] of this.rings) if (until <= now) this.rings.delete(name);
    if (this.rings.size < before) this._outlines = outlines(this.rings);
  }

  _lines({ left, top, resolution, ratio }, shift, lines, strokes) {
    const context = this._context;
    context.beginPath();
    for (const [x0, y0, x1, y1] of lines) {
      context.moveTo((x0 + shift - left) / resolution, (top - y0) / resolution);
      context.lineTo((x1 + shift - left) / resolution, (top - y1) / resolution);
    }
    context.lineCap = "square";
    for (const [colour, thickness] of strokes) {
      context.strokeStyle = colour;
      context.lineWidth = thickness * ratio;
      context.stroke();
    }
  }
}

/** The lines [x0, y0, x1, y1] around boxes, without those between neighbours. */
function outlines(rings) {
  const lines = new Map();
  for (const { box } of rings.values()) {
    for (const line of sides(box)) {
      const key = line.join();
      if (!lines.delete(key)) lines.set(key, line);
    }
  }
  return [...lines.values()];
}

function sides([west, south, east, north]) {
  return [[west, south, east, south], [west, north, east, north], [west, south, west, north], [east, south, east, north]];
}

/** The map in an element.
 *
 * Args:
 *   element: of the page.
 *   calls: `moved(view)` when it has come to rest, `picked(longitude, latitude)`, `drawn(condition)`,
 *     `pointed({longitude, latitude, pixel})` or null while the pointer moves.
 */
export class MapView {
  constructor(element, calls) {
    this._calls = calls;
    this._painter = new CellPainter();
    // A custom property has the colours of both themes; `color` has that of the present one.
    const probe = document.body.appendChild(document.createElement("i"));
    probe.hidden = true;
    this._colour = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    // Cells first: the base map takes as long to be drawn as all the rest of the page.
    const ready = new Promise((resolve) => { this._drawBase = resolve; });
    setTimeout(this._drawBase, BASE_AFTER_MS);
    const base = basemap(this._colour, ready);
    this._base = base;
    this._cellLayer = new ol.layer.Layer({
      source: new ol.source.Source({}),
      render: (frame) => this._painter.paint(frame),
    });
    this._regions = new ol.source.Vector();
    this._regionLayer = new ol.layer.Vector({ source: this._regions, className: "ol-layer above" });
    this._areas = new ol.source.Vector();
    this._areaLayer = new ol.layer.Vector({ source: this._areas, className: "ol-layer above" });
    this._points = new ol.source.Vector();
    this._pointLayer = new ol.layer.Vector({
      source: this._points, className: "ol-layer above", updateWhileAnimating: true, updateWhileInteracting: true,
    });
    this.map = new ol.Map({
      target: element,
      controls: [new ol.control.ScaleLine({ minWidth: 72 })],
      interactions: ol.interaction.defaults.defaults({ altShiftDragRotate: false, pinchRotate: false }),
      layers: [...base.layers.below, this._cellLayer, ...base.layers.above, this._areaLayer, this._regionLayer, this._pointLayer],
      view: new ol.View({ center: [0, 2_000_000], zoom: 2, minZoom: 1, maxZoom: 18, enableRotation: false }),
    });
    this.restyle();
    this._listen();
  }

  _listen() {
    this.map.on("moveend", () => this._calls.moved(this.view()));
    this.map.on("singleclick", ({ coordinate }) => {
      if (!this._drawing) this._calls.picked(...ol.proj.toLonLat(coordinate));
    });
    this.map.on("pointermove", ({ coordinate, pixel, dragging }) => {
      const [longitude, latitude] = ol.proj.toLonLat(coordinate);
      this._calls.pointed(dragging || this._drawing ? null : { longitude, latitude, pixel });
    });
    this.map.getViewport().addEventListener("pointerleave", () => this._calls.pointed(null));
  }

  /** What is seen: centre, zoom, and box in degrees, which may leave -180 to 180. */
  view() {
    const view = this.map.getView(), extent = view.calculateExtent(this.map.getSize());
    const [longitude, latitude] = ol.proj.toLonLat(view.getCenter());
    const [, south] = ol.proj.toLonLat([0, extent[1]]), [, north] = ol.proj.toLonLat([0, extent[3]]);
    const west = (extent[0] / WORLD) * 360, east = (extent[2] / WORLD) * 360;
    return { longitude, latitude, zoom: view.getZoom(), bbox: [west, south, east, north],
      pixelsPerDegree: WORLD / 360 / view.getResolution() };
  }

  /** What is seen, as a condition: its "box", or the "point" in the middle. */
  seen(kind) {
    const { longitude, latitude, bbox: [west, south, east, north] } = this.view();
    if (kind === "point") return conditionOf(kind, new ol.geom.Point([longitude, latitude]));
    const [from, to] = east - west < 360 ? [west, east] : [-180, 180];
    return conditionOf(kind, ol.geom.Polygon.fromExtent([from, Math.max(south, -90), to, Math.min(north, 90)]));
  }

  moveTo({ longitude, latitude, zoom }) {
    const view = this.map.getView();
    view.setCenter(ol.proj.fromLonLat([longitude, latitude]));
    if (zoom) view.setZoom(zoom);
  }

  /** Shows a box, with a margin. */
  fit(bbox, { isAnimated = true, zoomMax = 9 } = {}) {
    const [west, south, east, north] = projectBox(bbox);
    this.map.getView().fit([west, south, east, north], {
      padding: [40, 40, 60, 40], maxZoom: zoomMax, duration: isAnimated && !still.matches ? 300 : 0,
    });
  }

  zoom(steps) {
    const view = this.map.getView();
    view.animate({ zoom: view.getZoom() + steps, duration: still.matches ? 0 : 180 });
  }

  /** Shows cells in the colours of a scale. */
  setCells(cells, scale) {
    this._painter.cells = cells;
    this._painter.pixels = Uint32Array.from(cells.values, (value) => scale?.pixel(value) ?? 0);
    this._cellLayer.changed();
    if (cells.length) this.map.once("postrender", this._drawBase);
  }

  select(cell) {
    this._painter.selected = cell;
    this._cellLayer.changed();
  }

  /** Rings cells for five seconds: those of the map that hold the given ones. */
  ring(names) {
    const until = performance.now() + RING_MS;
    const isIdle = !this._painter.rings.size, shown = this._shown(names);
    const room = RINGS_MAX - this._painter.rings.size;
    this._painter.ring([...shown].slice(0, room).map((name) => [name, projectBox(bounds(name))]), until);
    if (isIdle && this._painter.rings.size) this._animate();
  }

  /** Takes rings away: those of the map's cells that hold the given ones. */
  unring(names) {
    for (const name of this._shown(names)) this._painter.rings.delete(name);
    this._painter.ring([], 0);
    this._cellLayer.changed();
  }

  _shown(names) {
    const { precision } = this._painter.cells;
    return new Set(names.map((name) => name.slice(0, precision || name.length)));
  }

  _animate() {
    this._painter.endRings(performance.now());
    this._cellLayer.changed();
    if (!this._painter.rings.size) return;
    if (still.matches) setTimeout(() => this._animate(), 500);
    else requestAnimationFrame(() => this._animate());
  }

  get rings() {
    return this._painter.rings.size;
  }

  /** Shows regions that are drawn or asked, in GeoJSON. */
  showRegions(geometries) {
    replaceFeatures(this._regions, geometries);
  }

  /** Shows the areas of subscriptions, in GeoJSON. */
  showAreas(geometries) {
    replaceFeatures(this._areas, geometries);
  }

  /** Shows points of what `key` names, in longitude and latitude; new ones in a ring for five seconds. */
  addPoints(key, places, isNew) {
    const now = performance.now(), isIdle = !this._hasNewPoints(now);
    this._points.addFeatures(places.slice(-POINTS_MAX).map((at) => {
      const feature = new ol.Feature(new ol.geom.Point(ol.proj.fromLonLat(at)));
      feature.setProperties({ key, until: isNew ? now + RING_MS : 0 });
      return feature;
    }));
    const all = this._points.getFeatures().sort((a, b) => a.ol_uid - b.ol_uid);
    this._points.removeFeatures(all.slice(0, -POINTS_MAX));
    if (isIdle && isNew) this._animatePoints();
  }

  /** Removes the points of what `key` names. */
  removePoints(key) {
    this._points.removeFeatures(this._points.getFeatures().filter((feature) => feature.get("key") === key));
  }

  _hasNewPoints(now) {
    return this._points.getFeatures().some((feature) => feature.get("until") > now);
  }

  _animatePoints() {
    this._pointLayer.changed();
    if (!this._hasNewPoints(performance.now())) return;
    if (still.matches) setTimeout(() => this._animatePoints(), 500);
    else requestAnimationFrame(() => this._animatePoints());
  }

  /** Lets the user draw a "box", a "polygon" or a "point"; a second call ends it. */
  draw(kind) {
    if (this._drawing) this.map.removeInteraction(this._drawing);
    this._drawing = null;
    if (!kind) return;
    this._drawing = new ol.interaction.Draw({
      style: this._regionStyle(), type: { box: "Circle", polygon: "Polygon", point: "Point" }[kind],
      ...(kind === "box" && { geometryFunction: ol.interaction.Draw.createBox() }),
    });
    this._drawing.on("drawend", ({ feature }) => {
      const geometry = feature.getGeometry().clone().transform("EPSG:3857", "EPSG:4326");
      // The click that ends a drawing picks no cell.
      setTimeout(() => this.draw(null), 300);
      this._calls.drawn(conditionOf(kind, geometry));
    });
    this.map.addInteraction(this._drawing);
  }

  _regionStyle() {
    return new ol.style.Style({
      stroke: new ol.style.Stroke({ color: this._colour("--region"), width: 2, lineDash: [6, 4] }),
      fill: new ol.style.Fill({ color: this._colour("--region-fill") }),
      image: new ol.style.Circle({ radius: 5, fill: new ol.style.Fill({ color: this._colour("--region") }) }),
    });
  }

  _areaStyle() {
    const width = (colour, pixels) => new ol.style.Stroke({ color: this._colour(colour), width: pixels });
    const circle = (stroke) => new ol.style.Circle({ radius: 7, stroke });
    return [width("--selected-halo", 5), width("--ring", 2.5)].map((stroke) => new ol.style.Style({ stroke, image: circle(stroke) }));
  }

  /** A dot with a ring, which is larger and pulses around a point that is new. */
  _pointStyle() {
    const halo = this._colour("--selected-halo"), ring = this._colour("--ring"), dot = this._colour("--selected");
    const circle = (radius, strokes) => strokes.map(([color, width]) => new ol.style.Style({
      image: new ol.style.Circle({ radius, stroke: new ol.style.Stroke({ color, width }) }),
    }));
    const middle = new ol.style.Style({ image: new ol.style.Circle({ radius: 2.5, fill: new ol.style.Fill({ color: dot }) }) });
    const old = [...circle(5, [[halo, 4.5], [ring, 2]]), middle];
    return (feature) => {
      const left = feature.get("until") - performance.now();
      if (left <= 0) return old;
      const pulse = still.matches ? 0 : Math.cos((left / PULSE_MS) * 2 * Math.PI);
      return [...circle(10 + 2 * pulse, [[halo, 6.5], [ring, 3.5]]), middle];
    };
  }

  /** Takes the colours of the page anew. */
  restyle() {
    this._base.restyle();
    this._regionLayer.setStyle(this._regionStyle());
    this._areaLayer.setStyle(this._areaStyle());
    this._pointLayer.setStyle(this._pointStyle());
    this._painter.colours = {
      selected: this._colour("--selected"), halo: this._colour("--selected-halo"), ring: this._colour("--ring"),
    };
    this._cellLayer.changed();
  }

  /** The geohash of the cell at a position, or of one that is drawn within some pixels; else "". */
  cellNear(longitude, latitude) {
    const { cells } = this._painter;
    const wrapped = ((((longitude + 180) % 360) + 360) % 360) - 180;
    const name = cells.precision ? encode(wrapped, latitude, cells.precision) : "";
    if (!name || cells.index(name) !== undefined) return name;
    const [x, y] = projectBox([wrapped, latitude, wrapped, latitude]);
    const reach = NEAR_PX * this.map.getView().getResolution();
    let best = "", least = reach;
    for (let index = 0, at = 0; index < cells.length; index += 1, at += 4) {
      const dx = Math.max(cells.edges[at] - x, 0, x - cells.edges[at + 2]);
      const dy = Math.max(cells.edges[at + 1] - y, 0, y - cells.edges[at + 3]);
      const distance = Math.max(dx, dy);
      if (distance < least) { least = distance; best = cells.names[index]; }
    }
    return best;
  }

  /** Picks the cell in the middle. */
  pickCentre() {
    this._calls.picked(...ol.proj.toLonLat(this.map.getView().getCenter()));
  }

  /** Shows all cells. */
  fitCells() {
    const { edges } = this._painter.cells;
    const box = [Infinity, Infinity, -Infinity, -Infinity];
    for (let at = 0; at < edges.length; at += 4) {
      box[0] = Math.min(box[0], edges[at]); box[1] = Math.min(box[1], edges[at + 1]);
      box[2] = Math.max(box[2], edges[at + 2]); box[3] = Math.max(box[3], edges[at + 3]);
    }
    const [west, south] = ol.proj.toLonLat(box.slice(0, 2)), [east, north] = ol.proj.toLonLat(box.slice(2));
    this.fit([west, south, east, north]);
  }
}

function replaceFeatures(source, geometries) {
  const format = new ol.format.GeoJSON({ featureProjection: "EPSG:3857" });
  source.clear();
  source.addFeatures(geometries.map((geometry) => format.readFeature({ type: "Feature", geometry, properties: null })));
}

/** What was drawn, as a condition, in the world around longitude 0. */
function conditionOf(kind, geometry) {
  const [west, , east] = geometry.getExtent();
  geometry.translate(-360 * Math.round((west + east) / 720), 0);
  const rounded = (value) => Math.round(value * 1000) / 1000;
  if (kind === "box") return { kind, bbox: geometry.getExtent().map(rounded) };
  if (kind === "point") return { kind, at: geometry.getCoordinates().map(rounded) };
  return { kind, ring: geometry.getCoordinates()[0].map((at) => at.map(rounded)) };
}
