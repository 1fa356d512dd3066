// Which cells are asked for, and the scale of their colours.

import { useRef, useState } from "./vendor/htm-preact.js";
import { address, collection, send } from "./api.js";
import { scaleOf } from "./colours.js";
import { cellSize, snapped } from "./geohash.js";
import { Cells } from "./map.js";
import { datetime } from "./time.js";

const CELL_PX = 4;
const PATCHY_CELL_PX = 22;
const PATCHY_CELLS_MIN = 200;

/** The parameters of a request for the cells of a view; null while too little is known. */
export function cellsRequest({ view, schema, summary, patchyFrom, colour, statistic, filter, time }) {
  if (!view || !schema || !summary?.extent) return null;
  const precision = precisionOf(view, schema.geohashPrecision, patchyFrom);
  return {
    precision, filter,
    datetime: datetime(time),
    statistics: numeric(summary).some(({ name }) => name === colour) ? `${colour}:${statistic}` : "",
    bbox: boxOf(view, summary.extent.bbox, precision),
  };
}

/** The features that can colour cells. */
export function numeric(summary) {
  return (summary?.features ?? []).filter(({ indexed, type }) => indexed && type !== "text");
}

/** The finest cells that are large enough to be seen, and no finer than those of the dataset.
 *
 * Cells from the precision `patchyFrom` on have gaps between them, so they have to be larger.
 */
function precisionOf({ pixelsPerDegree, latitude }, finest, patchyFrom = Infinity) {
  const stretch = 1 / Math.cos((Math.min(80, Math.abs(latitude)) * Math.PI) / 180);
  for (let precision = finest; precision > 1; precision -= 1) {
    const [width, height] = cellSize(precision);
    const least = precision >= patchyFrom ? PATCHY_CELL_PX : CELL_PX;
    if (Math.sqrt(width * height * stretch) * pixelsPerDegree >= least) return precision;
  }
  return 1;
}

/** The box to ask for: larger than the view, so that it serves for small moves; "" for all. */
function boxOf({ bbox: [west, south, east, north] }, extent, precision) {
  const width = (east - west) / 4, height = (north - south) / 4;
  if (east - west + 2 * width >= 360) return "";
  const shift = Math.round((west + east) / 720) * 360;  // to the world of the data
  const wide = [
    west - width - shift, Math.max(-90, south - height),
    east + width - shift, Math.min(90, north + height),
  ];
  const box = snapped(wide, Math.max(1, precision - 2));
  const isAll = box[0] <= extent[0] && box[1] <= extent[1] && box[2] >= extent[2] && box[3] >= extent[3];
  if (isAll) return "";
  // A box over the antimeridian has its west greater than its east.
  return [wrapped(box[0]), box[1], wrapped(box[2]), box[3]].join();
}

function wrapped(longitude) {
  return longitude < -180 ? longitude + 360 : longitude > 180 ? longitude - 360 : longitude;
}

/** The cells of a request, and how many partitions they lack. */
export async function readCells(dataset, asked, signal) {
  const url = address(collection(dataset, "/cells"), asked);
  const answer = await send(url, { signal, headers: { Accept: "application/json" } });
  const { columns, missing } = await answer.json();
  const values = asked.statistics ? columns[asked.statistics.replace(":", "_")] : columns.observations;
  const numbers = Float64Array.from(values, (one) => (one === null ? NaN : one));
  return { cells: new Cells(columns.cell, numbers, columns.observations), missing: missing.length };
}

/** The scale of cells, and a function that fits it to them anew.
 *
 * It stays as it is while the map moves or time plays, so that a colour keeps its meaning.
 */
export function useScale(cells, { scope, isCount }) {
  const kept = useRef({ scope: "", scale: null });
  const [, renew] = useState(0);
  const fit = () => { kept.current = { scope, scale: scaleOf(cells.values, { isCount }) }; };
  if (kept.current.scope !== scope) kept.current = { scope, scale: null };
  if (!kept.current.scale && cells.length) fit();
  return [kept.current.scale, () => { fit(); renew((one) => one + 1); }];
}

/** Whether cells have holes between them, because they are finer than the grid of the observations.
 *
 * Cells of a whole area have neighbours in the north and east, those of scattered stations have hardly
 * any.
 */
export function isPatchy({ edges, length }) {
  if (length < PATCHY_CELLS_MIN) return false;
  const columns = new Map();  // the south edges of the cells of each west edge
  for (let at = 0; at < 4 * length; at += 4) {
    if (!columns.has(edges[at])) columns.set(edges[at], new Set());
    columns.get(edges[at]).add(edges[at + 1]);
  }
  let north = 0, east = 0;
  for (let at = 0; at < 4 * length; at += 4) {
    north += columns.get(edges[at]).has(edges[at + 3]);
    east += columns.get(edges[at + 2])?.has(edges[at + 1]) ?? false;
  }
  return Math.max(north, east) > 0.2 * length && Math.min(north, east) < 0.75 * length;
}
