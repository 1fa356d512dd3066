// The colour scale of the cells: viridis, which is even to the eye, also of the colour-blind.

const ANCHORS = "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e"
  + "21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725";
const LEVELS = 256;
const ALPHA = 232;

const anchors = ANCHORS.match(/../g).map((pair) => parseInt(pair, 16));

/** Red, green and blue, 0 to 255, of a share from 0 to 1. */
function rgb(share) {
  const at = share * (anchors.length / 3 - 1), index = Math.min(Math.floor(at), anchors.length / 3 - 2);
  return [0, 1, 2].map((part) => {
    const low = anchors[3 * index + part], high = anchors[3 * index + 3 + part];
    return Math.round(low + (high - low) * (at - index));
  });
}

/** Pixels of `ImageData`, by level. */
const PIXELS = Uint32Array.from({ length: LEVELS }, (_, level) => {
  const [red, green, blue] = rgb(level / (LEVELS - 1));
  return ((ALPHA << 24) | (blue << 16) | (green << 8) | red) >>> 0;
});
const NO_VALUE = ((150 << 24) | (150 << 16) | (140 << 8) | 135) >>> 0;

export function css(share) {
  return `rgb(${rgb(Math.min(1, Math.max(0, share))).join(" ")})`;
}

/** Stops of a CSS gradient. */
export const GRADIENT = Array.from({ length: 17 }, (_, step) => css(step / 16)).join(", ");

/** A scale from `low` to `high`: pixels of values, and shares of them. */
export class Scale {
  constructor(low, high, isLog = false) {
    this.low = low;
    this.high = high;
    this.isLog = isLog;
    this._from = isLog ? Math.log(low) : low;
    const width = (isLog ? Math.log(high) : high) - this._from;
    this._factor = width > 0 ? 1 / width : 0;
  }

  share(value) {
    const at = this.isLog ? Math.log(value) : value;
    return this._factor ? (at - this._from) * this._factor : 0.5;
  }

  pixel(value) {
    if (value === null || Number.isNaN(value)) return NO_VALUE;
    const level = Math.floor(this.share(value) * LEVELS);
    return PIXELS[level < 0 ? 0 : level >= LEVELS ? LEVELS - 1 : level];
  }
}

/** The scale of the values of cells, without the 2 % at either end, which outliers would stretch. */
export function scaleOf(values, { isCount = false } = {}) {
  const valued = Float64Array.from(values).filter((value) => !Number.isNaN(value)).sort();
  if (!valued.length) return null;
  const at = (share) => valued[Math.round(share * (valued.length - 1))];
  const [low, high] = valued.length > 50 ? [at(0.02), at(0.98)] : [at(0), at(1)];
  if (isCount) return new Scale(Math.max(1, low), Math.max(1, high), high > 20 * low);
  return new Scale(low, high);
}
