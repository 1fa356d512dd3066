// Geohashes: the cell of a text and the text of a position; and where these are on the map.

const ALPHABET = "0123456789bcdefghjkmnpqrstuvwxyz";
const DIGITS = new Map([...ALPHABET].map((character, value) => [character, value]));

export const WORLD = 2 * Math.PI * 6378137, HALF = WORLD / 2;
const LATITUDE_MAX = 85.0511287798066;

/** A position in map units, those of Web Mercator; the poles are at the edge of the map. */
export function project(longitude, latitude) {
  const limited = Math.min(LATITUDE_MAX, Math.max(-LATITUDE_MAX, latitude));
  return [(longitude / 360) * WORLD, Math.log(Math.tan(Math.PI / 4 + (limited * Math.PI) / 360)) * 6378137];
}

/** A box in map units. */
export function projectBox([west, south, east, north]) {
  return [...project(west, south), ...project(east, north)];
}

/** West, south, east and north of a cell, in degrees. */
export function bounds(text) {
  let west = -180, east = 180, south = -90, north = 90, isLongitude = true;
  for (const character of text) {
    const digit = DIGITS.get(character);
    for (let bit = 16; bit; bit >>= 1) {
      if (isLongitude) {
        const middle = (west + east) / 2;
        if (digit & bit) west = middle; else east = middle;
      } else {
        const middle = (south + north) / 2;
        if (digit & bit) south = middle; else north = middle;
      }
      isLongitude = !isLongitude;
    }
  }
  return [west, south, east, north];
}

/** The cell of a position. */
export function encode(longitude, latitude, precision) {
  let west = -180, east = 180, south = -90, north = 90, isLongitude = true, text = "";
  while (text.length < precision) {
    let digit = 0;
    for (let bit = 16; bit; bit >>= 1) {
      if (isLongitude) {
        const middle = (west + east) / 2;
        if (longitude >= middle) { digit |= bit; west = middle; } else east = middle;
      } else {
        const middle = (south + north) / 2;
        if (latitude >= middle) { digit |= bit; south = middle; } else north = middle;
      }
      isLongitude = !isLongitude;
    }
    text += ALPHABET[digit];
  }
  return text;
}

/** Width and height of the cells of a precision, in degrees. */
export function cellSize(precision) {
  const bits = 5 * precision;
  return [360 / 2 ** Math.ceil(bits / 2), 180 / 2 ** Math.floor(bits / 2)];
}

/** The smallest box of whole cells around a box, which may leave the world in the east and west. */
export function snapped([west, south, east, north], precision) {
  const [width, height] = cellSize(precision);
  return [
    Math.floor(west / width) * width, Math.max(-90, Math.floor(south / height) * height),
    Math.ceil(east / width) * width, Math.min(90, Math.ceil(north / height) * height),
  ];
}
