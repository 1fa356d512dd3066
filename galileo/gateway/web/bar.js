// The top bar: the dataset and its colours, the state of the cluster, the token, and the theme.

import { html } from "./vendor/htm-preact.js";
import { change } from "./fragment.js";
import * as formats from "./formats.js";
import * as icons from "./icons.js";

export const STATISTICS = {
  mean: "mean", min: "least", max: "greatest", median: "median", p90: "90th percentile", std: "standard deviation",
};
export const COUNT = "observations";  // chosen rather than a feature
const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true">
  <rect x="3" y="3" width="12" height="12" rx="2" fill="#3b528b" />
  <rect x="17" y="3" width="12" height="12" rx="2" fill="#21918c" />
  <rect x="3" y="17" width="12" height="12" rx="2" fill="#5ec962" />
  <rect x="17" y="17" width="12" height="12" rx="2" fill="#fde725" />
</svg>`;

/** Args: names of datasets, the shown one, features, the shown one, health, who, theme, calls. */
export function TopBar({ datasets, dataset, features, feature, statistic, pill, who, theme, openToken, openCluster }) {
  const choose = (name) => change({ dataset: name, cell: "", time: "", filter: "", at: "", colour: "" });
  const names = dataset && !datasets.includes(dataset) ? [dataset, ...datasets] : datasets;
  const other = theme === "dark" ? "light" : "dark";
  const key = who ? `Signed in as ${who}; change the token` : "Use a token";
  return html`<header class="top">
    <h1>${LOGO}<span>Galileo</span></h1>
    <label class="pick">
      <select aria-label="Dataset" value=${dataset} onChange=${(event) => choose(event.target.value)}>
        ${!dataset && html`<option value="">No dataset</option>`}
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}
      </select>
    </label>
    ${dataset && html`<label class="pick colour"><span>coloured by</span>
      <select aria-label="Coloured by" value=${feature?.name ?? ""}
        onChange=${(event) => change({ colour: event.target.value || COUNT })}>
        ${features.map(({ name, unit }) => html`
          <option value=${name}>${formats.named(name)}${unit ? ` (${unit})` : ""}</option>`)}
        <option value="">observations</option>
      </select>
    </label>`}
    ${feature && html`<label class="pick">
      <select aria-label="Statistic" value=${statistic}
        onChange=${(event) => change({ statistic: event.target.value })}>
        ${Object.entries(STATISTICS).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
      </select>
    </label>`}
    <span class="space"></span>
    <button class=${`pill ${pill.level}`} onClick=${openCluster}><i aria-hidden="true"></i><span>${pill.words}</span></button>
    <button class="icon" aria-label=${key} title=${key} onClick=${openToken}>
      ${icons.KEY}${who && html`<span class="who">${who}</span>`}</button>
    <button class="icon" aria-label=${`Use ${other} colours`} title=${`Use ${other} colours`}
      onClick=${() => change({ theme: other })}>${theme === "dark" ? icons.SUN : icons.MOON}</button>
  </header>`;
}
