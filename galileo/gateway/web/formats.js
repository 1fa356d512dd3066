// Numbers and times as people read them.

const COUNT = new Intl.NumberFormat("en");
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });

/** An integer with its thousands separated. */
export function count(value) {
  return COUNT.format(value);
}

/** "1 label", "2 labels". */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A number with so many digits as a difference of `step` needs. */
export function number(value, step = Math.abs(value) / 1000) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(2);
  const digits = step > 0 ? Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) : 0;
  return new Intl.NumberFormat("en", { maximumFractionDigits: digits }).format(value);
}

/** Ascending round numbers, about `wanted` of them, between two bounds. */
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}

/** A time in milliseconds as "1 Mar 2014, 06:00", in UTC. */
export function time(at) {
  return `${date(at)}, ${clock(at)}`;
}

export function date(at) {
  return DATE.format(at);
}

export function clock(at) {
  return new Date(at).toISOString().slice(11, 16);
}

/** A time in milliseconds as ISO 8601, to the second. */
export function iso(at) {
  return new Date(at).toISOString().replace(/\.000Z$/, "Z");
}

/** Seconds as "250 ms", "5 s", "1 h". */
export function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const unit = units.find(([size]) => seconds >= size);
  if (!unit) return `${Math.round(seconds * 1000)} ms`;
  return `${number(Math.round((seconds / unit[0]) * 10) / 10, 0.1)} ${unit[1]}`;
}

/** A position as "39.7° N, 104.9° W". */
export function position(longitude, latitude, digits = 2) {
  const north = `${Math.abs(latitude).toFixed(digits)}° ${latitude < 0 ? "S" : "N"}`;
  return `${north}, ${Math.abs(longitude).toFixed(digits)}° ${longitude < 0 ? "W" : "E"}`;
}

/** The name of a feature as a label: "wind_speed" is "wind speed". */
export function named(feature) {
  return feature.replaceAll("_", " ");
}
