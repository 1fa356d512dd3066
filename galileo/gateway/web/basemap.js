// Land, borders and names below and above the cells, from TopoJSON files of this gateway.

const ol = globalThis.ol;
const COUNTRIES = new URL("vendor/countries-50m.json", import.meta.url);
const STATES = new URL("vendor/states-10m.json", import.meta.url);
const STATE_RESOLUTION_MAX = 8_000, STATE_NAME_RESOLUTION_MAX = 5_000;

/** The layers of the base map: `below` and `above` the cells. Loads its files at once. */
export function basemap(colour) {
  const land = new ol.source.Vector(), borders = new ol.source.Vector({ wrapX: true });
  const states = new ol.source.Vector(), names = new ol.source.Vector();
  const layers = {
    below: [
      new ol.layer.VectorImage({ source: land, imageRatio: 1.5 }),
    ],
    above: [
      new ol.layer.VectorImage({ source: states, imageRatio: 1.5, maxResolution: STATE_RESOLUTION_MAX }),
      new ol.layer.VectorImage({ source: borders, imageRatio: 1.5 }),
      new ol.layer.Vector({ source: names, declutter: true, updateWhileInteracting: false }),
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
  load({ land, borders, states, names });
  return { layers, restyle };
}

async function load({ land, borders, states, names }) {
  const [countryFile, stateFile] = await Promise.all([COUNTRIES, STATES].map(topology));
  const countries = features(countryFile, "countries");
  land.addFeatures(features(countryFile, "land"));
  borders.addFeatures(lines(countryFile, "countries", { isShared: null }));
  states.addFeatures(lines(stateFile, "states", { isShared: true }));
  names.addFeatures(countries.map((country) => named(country, 0)).filter(Boolean));
  names.addFeatures(features(stateFile, "states").map((state) => named(state, 1)).filter(Boolean));
}

async function topology(url) {
  return (await fetch(url)).json();
}

function features(file, layer) {
  const format = new ol.format.TopoJSON({ layers: [layer] });
  return format.readFeatures(file, { dataProjection: "EPSG:4326", featureProjection: "EPSG:3857" });
}

/** The arcs of a layer as lines: all of them, or those that two of its areas share. */
function lines(file, layer, { isShared }) {
  const uses = new Uint8Array(file.arcs.length);
  const visit = (arcs) => {
    if (Array.isArray(arcs)) arcs.forEach(visit);
    else uses[arcs < 0 ? ~arcs : arcs] += 1;
  };
  file.objects[layer].geometries.forEach((area) => visit(area.arcs ?? []));
  const { scale, translate } = file.transform;
  const coordinates = file.arcs.filter((_, index) => uses[index] && (!isShared || uses[index] > 1))
    .map((arc) => {
      let x = 0, y = 0;
      return arc.map(([dx, dy]) => ol.proj.fromLonLat([
        (x += dx) * scale[0] + translate[0], (y += dy) * scale[1] + translate[1],
      ]));
    });
  return [new ol.Feature(new ol.geom.MultiLineString(coordinates))];
}

/** A point in the largest part of an area, with its name, and the width of that part. */
function named(area, level) {
  const geometry = area.getGeometry();
  if (!geometry) return null;
  const parts = geometry.getType() === "MultiPolygon" ? geometry.getPolygons() : [geometry];
  const largest = parts.reduce((best, part) => (part.getArea() > best.getArea() ? part : best));
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
    const isStateScale = resolution < STATE_NAME_RESOLUTION_MAX;
    // Only where the area is wide enough for its name.
    if (level === 1 ? !isStateScale : false) return null;
    if (point.get("width") / resolution < 7.5 * point.get("name").length) return null;
    styles[level].getText().setText(point.get("name"));
    return styles[level];
  };
}
