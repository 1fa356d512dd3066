// The values of what was found, in lists.

import { html } from "./vendor/htm-preact.js";
import * as formats from "./formats.js";

const PLACE = ["geohash", "time", "block", "partition", "sequence", "label"];
const SHOWN_MAX = 3;

/** The first values of a label or an observation, with their names. */
export function Values({ properties }) {
  const own = Object.entries(properties).filter(([name, value]) => !PLACE.includes(name) && value !== null);
  return html`<span class="values-of">${own.slice(0, SHOWN_MAX).map(([name, value]) => html`
    <span class="value-of"><span class="muted">${formats.named(name)}</span>${" "}
      ${typeof value === "number" ? formats.number(value, 0.1) : String(value)}</span>`)}</span>`;
}
