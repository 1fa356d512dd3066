// Conditions of a query: the CQL2 text of some, and the conditions of a text.
//
// The text is what is asked. Conditions are what the page can show and edit of it: comparisons of a
// feature, ranges, lists of texts, and a box or polygon, joined by AND. `parse` gives null for a
// text that has more than these, which stays a text.

const NUMBER = String.raw`[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?`;
const NAME = String.raw`([A-Za-z_][A-Za-z0-9_]*)`;
const TEXT = String.raw`'(?:[^'\\]|\\\\|'')*'`;
const RANGE = new RegExp(`^${NAME}\\s+BETWEEN\\s+(${NUMBER})\\s+AND\\s+(${NUMBER})$`, "i");
const COMPARISON = new RegExp(`^${NAME}\\s*(>=|<=|>|<|=)\\s*(${NUMBER}|${TEXT}|true|false)$`, "i");
const LIST = new RegExp(`^${NAME}\\s+IN\\s*\\(\\s*(${TEXT}(?:\\s*,\\s*${TEXT})*)\\s*\\)$`, "i");
const BOX = new RegExp(
  `^S_INTERSECTS\\(\\s*geometry\\s*,\\s*BBOX\\(\\s*(${NUMBER}(?:\\s*,\\s*${NUMBER}){3})\\s*\\)\\s*\\)$`, "i",
);
const POLYGON = /^S_INTERSECTS\(\s*geometry\s*,\s*POLYGON\s*\(\(([^()]+)\)\)\s*\)$/i;

/** The text of conditions. */
export function text(conditions) {
  return conditions.map(textOf).join(" AND ");
}

function textOf(condition) {
  switch (condition.kind) {
    case "range": {
      const { feature, low, high } = condition;
      if (low !== null && high !== null) return `${feature} BETWEEN ${low} AND ${high}`;
      return low !== null ? `${feature} ${condition.isOpen ? ">" : ">="} ${low}`
        : `${feature} ${condition.isOpen ? "<" : "<="} ${high}`;
    }
    case "values":
      return `${condition.feature} IN (${condition.values.map(quoted).join(", ")})`;
    case "flag":
      return `${condition.feature} = ${condition.value}`;
    case "box":
      return `S_INTERSECTS(geometry, BBOX(${condition.bbox.join(", ")}))`;
    case "polygon":
      return `S_INTERSECTS(geometry, POLYGON((${condition.ring.map((at) => at.join(" ")).join(", ")})))`;
  }
}

function quoted(value) {
  return `'${value.replace(/['\\]/g, "$&$&")}'`;
}

/** The conditions of a text; null if it has others, too. */
export function parse(given) {
  if (!given.trim()) return [];
  const found = parts(given).map(conditionOf);
  return found.includes(null) ? null : found;
}

/** The text between the ANDs that are not in brackets, texts or BETWEEN. */
function parts(given) {
  const found = [];
  let depth = 0, start = 0, isBetween = false;
  for (const token of given.matchAll(/'(?:[^'\\]|\\[^]|'')*'|[()]|\b(?:AND|BETWEEN)\b/gi)) {
    const word = token[0].toUpperCase();
    if (word === "(") depth += 1;
    else if (word === ")") depth -= 1;
    else if (word === "BETWEEN") isBetween = true;
    else if (word === "AND" && isBetween) isBetween = false;
    else if (word === "AND" && depth === 0) {
      found.push(given.slice(start, token.index));
      start = token.index + token[0].length;
    }
  }
  return [...found, given.slice(start)].map((part) => part.trim());
}

function conditionOf(part) {
  let match = part.match(RANGE);
  if (match) return { kind: "range", feature: match[1], low: Number(match[2]), high: Number(match[3]) };
  match = part.match(LIST);
  if (match) {
    const values = [...match[2].matchAll(new RegExp(TEXT, "g"))].map(([value]) => unquoted(value));
    return { kind: "values", feature: match[1], values };
  }
  match = part.match(COMPARISON);
  if (match) return comparison(match);
  match = part.match(BOX);
  if (match) return { kind: "box", bbox: match[1].split(",").map(Number) };
  match = part.match(POLYGON);
  return match ? polygon(match[1]) : null;
}

function comparison([, feature, operator, value]) {
  if (/^(true|false)$/i.test(value)) {
    return operator === "=" ? { kind: "flag", feature, value: value.toLowerCase() === "true" } : null;
  }
  if (value.startsWith("'")) {
    return operator === "=" ? { kind: "values", feature, values: [unquoted(value)] } : null;
  }
  const bound = Number(value), isOpen = operator.length === 1;
  if (operator === "=") return { kind: "range", feature, low: bound, high: bound };
  const isLow = operator.startsWith(">");
  return { kind: "range", feature, low: isLow ? bound : null, high: isLow ? null : bound, isOpen };
}

function polygon(inner) {
  const ring = inner.split(",").map((at) => at.trim().split(/\s+/).map(Number));
  return ring.every((at) => at.length === 2 && at.every(Number.isFinite)) ? { kind: "polygon", ring } : null;
}

function unquoted(value) {
  return value.slice(1, -1).replace(/''|\\\\/g, (pair) => pair[0]);
}

/** What a chip says: [name, value]. */
export function words(condition, unit = "") {
  const of = (value) => (unit ? `${value} ${unit}` : `${value}`);
  switch (condition.kind) {
    case "range":
      if (condition.low !== null && condition.high !== null) {
        return condition.low === condition.high ? `= ${of(condition.low)}` : `${condition.low} to ${of(condition.high)}`;
      }
      if (condition.low !== null) return `${condition.isOpen ? ">" : "≥"} ${of(condition.low)}`;
      return `${condition.isOpen ? "<" : "≤"} ${of(condition.high)}`;
    case "values":
      return condition.values.length > 2
        ? `${condition.values.slice(0, 2).join(", ")} and ${condition.values.length - 2} more`
        : condition.values.join(", ");
    case "flag":
      return condition.value ? "yes" : "no";
    case "box":
      return "in the box";
    case "polygon":
      return `in the polygon of ${condition.ring.length - 1} corners`;
  }
}

/** The region of a condition, in GeoJSON. */
export function geometry(condition) {
  if (condition.kind === "point") return { type: "Point", coordinates: condition.at };
  if (condition.kind === "polygon") return { type: "Polygon", coordinates: [condition.ring] };
  const [west, south, east, north] = condition.bbox;
  return { type: "Polygon", coordinates: [[[west, south], [east, south], [east, north], [west, north], [west, south]]] };
}

export function isRegion(condition) {
  return condition.kind === "box" || condition.kind === "polygon";
}
