// What the page shows, in the fragment of its address, so that a link shows the same. The token of
// the user is no part of it.

const DEFAULTS = {
  dataset: "",
  colour: "",       // a feature; "" for the number of observations
  statistic: "mean",
  filter: "",       // CQL2 text
  time: "",         // "start/end"
  at: "",           // "longitude,latitude,zoom"
  cell: "",
  subscriptions: "",  // "channel/id" of each one, by comma
  panel: "watches",
  theme: "",        // "light", "dark"; "" as the system has it
};

function parsed() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(
    Object.entries(DEFAULTS).map(([name, value]) => [name, given.get(name) ?? value]),
  );
}

let current = parsed();
const listeners = new Set();

export function fragment() {
  return current;
}

/** Changes some values, and the address with them. */
export function change(patch) {
  const next = { ...current, ...patch };
  if (Object.keys(DEFAULTS).every((name) => next[name] === current[name])) return;
  current = next;
  const shown = Object.entries(current).filter(([name, value]) => value !== DEFAULTS[name]);
  const text = new URLSearchParams(shown).toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  for (const listener of listeners) listener(current);
}

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

addEventListener("hashchange", () => {
  current = parsed();
  for (const listener of listeners) listener(current);
});
