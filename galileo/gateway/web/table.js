// The panel "Cells": all cells of the map in a table, the greatest values first.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import * as formats from "./formats.js";

const PAGE = 50;

export function CellTable({ cells, unit, words, selected, choose }) {
  const [order, setOrder] = useState("descending");
  const [length, setLength] = useState(PAGE);
  const indexes = useMemo(() => {
    const key = (index) => (Number.isNaN(cells.values[index]) ? -Infinity : cells.values[index]);
    const sorted = Array.from({ length: cells.length }, (_, index) => index);
    return sorted.sort((a, b) => (order === "descending" ? key(b) - key(a) : key(a) - key(b)));
  }, [cells, order]);
  const other = order === "descending" ? "ascending" : "descending";
  if (!cells.length) return html`<div class="empty"><p>The map has no cells.</p></div>`;
  return html`<div class="cell-table">
    <p class="muted">${formats.counted(cells.length, "cell")} on the map</p>
    <table>
      <thead><tr><th scope="col">Cell</th>
        <th scope="col" class="right" aria-sort=${order}><button class="link" onClick=${() => setOrder(other)}>
          ${words}${unit ? `, ${unit}` : ""} ${order === "descending" ? "↓" : "↑"}</button></th>
        <th scope="col" class="right">Obs.</th></tr></thead>
      <tbody>${indexes.slice(0, length).map((index) => html`
        <${Row} key=${cells.names[index]} ...${{ cells, index, selected, choose }} />`)}</tbody>
    </table>
    ${length < cells.length && html`<button onClick=${() => setLength(length + 4 * PAGE)}>Show more</button>`}
  </div>`;
}

function Row({ cells, index, selected, choose }) {
  const name = cells.names[index];
  return html`<tr class=${selected === name ? "selected" : ""}>
    <td><button class="link mono" aria-label=${`Show the cell ${name}`} onClick=${() => choose(name)}>${name}</button></td>
    <td class="right">${formats.number(cells.values[index], 0.01)}</td>
    <td class="right">${formats.count(cells.observations[index])}</td>
  </tr>`;
}
