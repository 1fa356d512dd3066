// Land, borders and names below and above the cells, from TopoJSON files of this gateway.

import { HALF, WORLD, project } from "./geohash.js";
import { pause } from "./hooks.js";

const ol = globalThis.ol;
const COUNTRIES = new URL("vendor/countries-50m.json", import.meta.url);
const STATES = new URL("vendor/states-10m.json", import.meta.url);
const STATE_RESOLUTION_MAX = 25_000, STATE_NAME_RESOLUTION_MAX = 5_000;
const ABOVE = "ol-layer above";  // another name, so that they are drawn to a canvas of their own
const SOUTH_POLE = -HALF * 0.999;

/** The layers of the base map: `below` and `above` the cells. It is drawn when `ready` is resolved. */
export function basemap(colour, ready) {
  const land = new ol.source.Vector(), borders = new ol.source.Vector({ wrapX: true });
  const states = new ol.source.Vector(), names = new ol.source.Vector();
  const layers = {
    below: [
      new ol.layer.VectorImage({ source: land, imageRatio: 1.5 }),
    ],
    above: [
      new ol.layer.VectorImage({ source: states, className: ABOVE, imageRatio: 1.5, maxResolution: STATE_RESOLUTION_MAX }),
      new ol.layer.VectorImage({ source: borders, className: ABOVE, imageRatio: 1.5 }),
      new ol.layer.Vector({ source: names, className: ABOVE, declutter: true }),
    ],
  };
  const restyle = () => {
    const stroke = (name, width) => new ol.style.Style({
      stroke: new ol.style.Stroke({ color: colour(name), width }),
    });
    layers.below[0].setStyle(new ol.style.Style({ fill: new ol.style.Fill({ color: colour("--land") }) }));
    layers.above[0].setStyle(stroke("--border-state", 0.75));
    layers.above[1].setStyle(stroke("--border-country", 1));
    layers.above[2].setStyle(nameStyle(colour));
  };
  restyle();
  load({ land, borders, states, names }, ready);
  return { layers, restyle };
}

/** Fills the sources in steps, between which the page takes answers and shows them. */
async function load({ land, borders, states, names }, ready) {
  const texts = await Promise.all([COUNTRIES, STATES].map(read));
  await ready;
  const [countryFile, stateFile] = texts.map(topology);
  const named = (file, layer, level) => features(file, layer).map((area) => nameOf(area, level)).filter(Boolean);
  const steps = [
    () => land.addFeatures(features(countryFile, "land")),
    () => borders.addFeatures(lines(countryFile, "countries", { isShared: false })),
    () => states.addFeatures(lines(stateFile, "states", { isShared: true })),
    () => names.addFeatures(named(countryFile, "countries", 0)),
    () => names.addFeatures(named(stateFile, "states", 1)),
  ];
  for (const step of steps) {
    step();
    await pause(1);
  }
}

/** Lines that are simplified like the areas that they surround: on a grid, which is faster. */
class Lines extends ol.geom.MultiLineString {
  getSimplifiedGeometryInternal(squaredTolerance) {
    const positions = [], ends = [], given = [this.flatCoordinates, 0, this.getEnds(), this.stride];
    positions.length = ol.geom.flat.simplify.quantizeArray(...given, Math.sqrt(squaredTolerance), positions, 0, ends);
    return new ol.geom.MultiLineString(positions, "XY", ends);
  }
}

async function read(url) {
  return (await fetch(url, { priority: "low" })).text();
}

function topology(text) {
  const file = JSON.parse(text);
  return { objects: file.objects, arcs: decoded(file) };
}

/** The areas of a layer as features, with their names. */
function features({ objects, arcs }, layer) {
  const ring = (indexes) => indexes.flatMap((index, at) => {
    const arc = index < 0 ? [...arcs[~index]].reverse() : arcs[index];
    return at ? arc.slice(1) : arc;  // each begins where the last one ended
  });
  return objects[layer].geometries.filter((area) => area.arcs).map((area) => {
    const parts = (area.type === "Polygon" ? [area.arcs] : area.arcs)
      .flatMap((rings) => twice(rings.map((one) => continuous(ring(one)))));
    return new ol.Feature({ geometry: new ol.geom.MultiPolygon(parts), name: area.properties?.name });
  });
}

/** Positions without jumps at the antimeridian; they may leave the world at one side. */
function continuous(positions) {
  let shift = 0;
  return positions.map(([x, y], index) => {
    const step = index ? x - positions[index - 1][0] : 0;
    if (Math.abs(step) > HALF && y > SOUTH_POLE) shift -= Math.sign(step) * WORLD;
    return [x + shift, y];
  });
}

/** Lists of positions, and a second time one world away if they leave it. */
function twice(lists) {
  const xs = lists[0].map(([x]) => x), most = Math.max(...xs), least = Math.min(...xs);
  const shift = most > HALF * 1.0001 ? -WORLD : least < -HALF * 1.0001 ? WORLD : 0;
  return shift ? [lists, lists.map((list) => list.map(([x, y]) => [x + shift, y]))] : [lists];
}

/** The arcs of a layer as lines: all of them, or those that two of its areas share. */
function lines({ objects, arcs }, layer, { isShared }) {
  const uses = new Uint8Array(arcs.length);
  const visit = (one) => {
    if (Array.isArray(one)) one.forEach(visit);
    else uses[one < 0 ? ~one : one] += 1;
  };
  objects[layer].geometries.forEach((area) => visit(area.arcs ?? []));
  const drawn = arcs.filter((_, index) => uses[index] > (isShared ? 1 : 0))
    .flatMap((arc) => twice([continuous(arc)]).map(([one]) => one));
  return [new ol.Feature(new Lines(drawn))];
}

/** The arcs of a file as positions in map units. */
function decoded({ arcs, transform: { scale, translate } }) {
  return arcs.map((arc) => {
    let x = 0, y = 0;
    return arc.map(([dx, dy]) => {
      x += dx;
      y += dy;
      return project(x * scale[0] + translate[0], y * scale[1] + translate[1]);
    });
  });
}

/** A point in the largest part of an area, with its name, and the width of that part. */
function nameOf(area, level) {
  const geometry = area.getGeometry();
  const largest = geometry.getPolygons().reduce((best, part) => (part.getArea() > best.getArea() ? part : best));
  const name = area.get("name");
  if (!name || name === "Antarctica") return null;
  const [west, , east] = largest.getExtent();
  const point = new ol.Feature(new ol.geom.Point(largest.getInteriorPoint().getCoordinates().slice(0, 2)));
  point.setProperties({ name, level, width: east - west }, true);
  return point;
}

function nameStyle(colour) {
  const styles = [0, 1].map((level) => new ol.style.Style({
    text: new ol.style.Text({
      font: level ? "500 11px system-ui, sans-serif" : "600 12px system-ui, sans-serif",
      fill: new ol.style.Fill({ color: colour(level ? "--name-state" : "--name-country") }),
      stroke: new ol.style.Stroke({ color: colour("--name-halo"), width: 3 }),
      overflow: true,
    }),
  }));
  return (point, resolution) => {
    const level = point.get("level");
    if (level === 1 && resolution > STATE_NAME_RESOLUTION_MAX) return null;
    // Only where the area is wide enough for its name.
    if (point.get("width") / resolution < 7.5 * point.get("name").length) return null;
    styles[level].getText().setText(point.get("name"));
    return styles[level];
  };
}
