// The panel "Cluster": nodes, their partitions, and what is wrong with them.

import { html } from "./vendor/htm-preact.js";
import * as formats from "./formats.js";

/** The state of a cluster in words, as the pill of the page has it: {level, words}. */
export function health({ status, missing, problem }) {
  if (problem?.status === 0) return { level: "bad", words: navigator.onLine ? "gateway does not answer" : "offline" };
  if (problem?.isTransient) return { level: "bad", words: "no node answers" };
  if (!status) {
    if (missing > 0) return { level: "warn", words: `partial: ${formats.counted(missing, "partition")} missing` };
    return missing === 0 ? { level: "good", words: "complete" } : { level: "idle", words: "connecting" };
  }
  const { nodes } = status;
  const up = nodes.filter(({ state }) => state !== "unreachable").length;
  const words = [`${up} of ${formats.counted(nodes.length, "node")}`];
  const lag = Math.max(0, ...nodes.map((node) => node.lag ?? 0));
  words.push(missing > 0 ? `partial: ${formats.counted(missing, "partition")} missing` : "complete");
  if (lag > 0) words.push(`copies ${formats.counted(lag, "commit")} behind`);
  return { level: missing > 0 || up < nodes.length ? "warn" : "good", words: words.join(" · ") };
}

export function ClusterPanel({ cluster }) {
  const { value, problem } = cluster;
  if (!value) return problem ? html`<p class="problem">${problem.message}</p>` : html`<p class="muted">Asking the nodes…</p>`;
  return html`<div class="cluster">
    ${problem && html`<p class="notice" role="status">As it was before this: ${problem.message}</p>`}
    <p class="muted">
      ${formats.counted(value.partitions, "partition")}${value.replicas > 1 ? `, ${value.replicas} copies of each` : ""}.${" "}
      ${value.underReplicated.length > 0 && html`<b>${formats.count(value.underReplicated.length)} with too few copies.</b>`}</p>
    ${value.nodes.map((node) => html`
      <${Node} key=${node.name} node=${node} partitions=${value.partitions} short=${value.underReplicated} />`)}
    <h2>Coordinators</h2>
    ${value.coordinators.length ? html`<table>
      <thead><tr><th scope="col">Watch</th><th scope="col">Node</th><th scope="col" class="right">Term</th></tr></thead>
      <tbody>${value.coordinators.map((one) => html`<tr key=${one.ccq}>
        <td><span class="mono" title=${one.ccq}>${one.ccq.slice(0, 12)}</span> <span class="muted">${one.dataset}</span></td>
        <td>${one.state === "running" ? one.node || "being chosen" : one.state}</td>
        <td class="right">${one.term}</td></tr>`)}</tbody>
    </table>` : html`<p class="muted">No continuous query of yours.</p>`}
  </div>`;
}

function Node({ node, partitions, short }) {
  const facts = node.state === "unreachable" ? [] : [
    formats.counted(node.partitions.length, "partition"),
    `${formats.count(Math.round(node.memory / 2 ** 20))} MiB`,
    `${formats.number(100 * node.cpu, 1)} % CPU`,
    `${node.ccqs === 1 ? "1 watch" : `${formats.count(node.ccqs)} watches`}`,
    ...(node.lag > 0 ? [`${formats.counted(node.lag, "commit")} behind`] : []),
  ];
  return html`<article class=${`node ${node.state}`} aria-label=${`Node ${node.name}`}>
    <header class="row"><span class=${`state ${node.state}`}>${node.state}</span><b>${node.name}</b>
      <span class="muted">${node.group}${node.rack ? ` · rack ${node.rack}` : ""}</span>
      <span class="muted mono">${node.address}</span></header>
    ${node.partitions && html`<${Strip} own=${node.partitions} total=${partitions} short=${short} name=${node.name} />`}
    <p class="muted facts">${facts.length ? facts.map((fact) => html`<span>${fact}</span>`)
      : "It does not answer; nothing is known of its partitions."}</p>
    ${(node.problems ?? []).map((one) => html`<p class="problem">${one}</p>`)}
  </article>`;
}

/** The partitions of a node among all of them; those with too few copies in another colour. */
function Strip({ own, total, short, name }) {
  return html`<svg class="strip" viewBox=${`0 0 ${total} 10`} preserveAspectRatio="none" role="img"
    aria-label=${`Partitions of ${name}: ${own.join(", ")}`}>
    ${own.map((one) => html`<rect class=${short.includes(one) ? "part short" : "part"} x=${one + 0.1} width="0.8" height="10" />`)}
  </svg>`;
}
