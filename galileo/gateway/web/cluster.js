// The panel "Cluster": nodes, their partitions, and what is wrong with them.

import { html } from "./vendor/htm-preact.js";
import * as formats from "./formats.js";

/** The state of a cluster in words, as the pill of the page has it: {level, words}. */
export function health({ status, missing, problem }) {
  if (problem?.status === 0) return { level: "bad", words: "gateway does not answer" };
  if (problem?.isTransient) return { level: "bad", words: "no node answers" };
  if (!status) {
    if (missing > 0) return { level: "warn", words: `partial: ${formats.counted(missing, "partition")} missing` };
    return missing === 0 ? { level: "good", words: "complete" } : { level: "idle", words: "connecting" };
  }
  const { nodes } = status;
  const up = nodes.filter(({ state }) => state !== "unreachable").length;
  const lag = Math.max(...nodes.map(({ lag }) => lag ?? -1));
  const words = [`${up} of ${formats.counted(nodes.length, "node")}`];
  if (lag >= 0) words.push(`${formats.duration(lag)} behind`);
  words.push(missing > 0 ? `partial: ${formats.counted(missing, "partition")} missing` : "complete");
  return { level: missing > 0 ? "warn" : up < nodes.length ? "warn" : "good", words: words.join(" · ") };
}

export function ClusterPanel({ cluster }) {
  const { value, problem } = cluster;
  if (!value) return problem ? html`<p class="problem">${problem.message}</p>` : html`<p class="muted">Asking the nodes…</p>`;
  return html`<div class="cluster">
    ${problem && html`<p class="notice" role="status">This was true before the gateway stopped answering: ${problem.message}</p>`}
    ${value.nodes.map((node) => html`<${Node} key=${node.name} node=${node} />`)}
  </div>`;
}

function Node({ node }) {
  const partitions = node.partitions ?? [];
  const troubles = [
    ...(node.lost ?? []).map((one) => `lost: ${one}`), ...(node.stopped ?? []).map((one) => `stopped: ${one}`),
    ...(node.damaged ?? []).map((one) => `damaged: ${one}`),
    ...(node.evaluator_problem ? [`evaluator: ${node.evaluator_problem}`] : []),
    ...(node.under_replicated?.length ? [`${formats.counted(node.under_replicated.length, "partition")} with too few copies`] : []),
  ];
  return html`<article class=${`node ${node.state}`} aria-label=${`Node ${node.name}`}>
    <header class="row"><span class=${`state ${node.state === "up" ? "running" : node.state}`}>${node.state}</span><b>${node.name}</b>
      <span class="muted">${node.group}${node.rack ? ` · rack ${node.rack}` : ""}</span></header>
    <p class="muted mono">${node.address}</p>
    ${partitions.length > 0 && html`<${Strip} partitions=${partitions} short=${node.under_replicated ?? []} name=${node.name} />`}
    <p class="muted">${[
      partitions.length ? formats.counted(partitions.length, "partition") : "",
      node.memory_bytes ? `${formats.number(node.memory_bytes / 2 ** 20, 1)} MiB` : "",
      node.ccqs_coordinated !== undefined ? `coordinates ${formats.count(node.ccqs_coordinated)}` : "",
      node.lag !== undefined && node.lag !== null ? `${formats.duration(node.lag)} behind` : "",
    ].filter(Boolean).join(" · ")}</p>
    ${troubles.map((one) => html`<p class="problem">${one}</p>`)}
  </article>`;
}

function Strip({ partitions, short, name }) {
  const width = Math.max(...partitions) + 1;
  return html`<svg class="strip" viewBox=${`0 0 ${width} 10`} preserveAspectRatio="none" role="img"
    aria-label=${`Partitions of ${name}: ${partitions.join(", ")}`}>
    ${partitions.map((one) => html`<rect class=${short.includes(one) ? "part short" : "part"} x=${one + 0.1} width="0.8" height="10" />`)}
  </svg>`;
}
