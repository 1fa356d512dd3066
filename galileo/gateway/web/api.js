// Requests to the gateway, with the token of the user.

import { answered, lost } from "./connection.js";

/** The root of the gateway, which may lie below a path of a proxy. */
export const ROOT = new URL(".", location.href.split("#")[0]);
const TOKEN_KEY = "galileo-token";
const RETRY_S = 1;

let token = sessionStorage.getItem(TOKEN_KEY) ?? "";

/** An answer that is an error, or none: then its status is 0. */
export class Problem extends Error {
  constructor(status, document = {}, retryAfterS = RETRY_S) {
    super(document.detail ?? document.title ?? "the gateway does not answer");
    this.status = status;
    this.kind = document.kind ?? "";
    this.details = document.details ?? {};
    this.retryAfterS = retryAfterS;
  }

  /** Whether the same request can succeed later. */
  get isTransient() {
    return this.status === 0 || this.status === 429 || this.status === 503 || this.status === 504;
  }
}

export function hasToken() {
  return token !== "";
}

/** Uses a token from now on; `isKept` for as long as the tab is open, also over reloads. */
export function useToken(value, isKept) {
  token = value;
  prefetched.clear();
  if (isKept && value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export const refusals = new EventTarget();  // "refused" when the gateway asks for another token

export function address(path, params = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== undefined && value !== null) url.searchParams.set(name, value);
  }
  return url;
}

/** Sends a request; throws a Problem, or an AbortError. */
export async function send(url, { headers = {}, ...options } = {}) {
  const used = token;
  const authorization = used ? { Authorization: `Bearer ${used}` } : {};
  let answer;
  try {
    answer = await fetch(url, {
      ...options, headers: { ...authorization, ...headers }, credentials: "omit", cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Problem(0);
  }
  answered();
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (problem.status === 401 && used === token) {
    refusals.dispatchEvent(new CustomEvent("refused", { detail: { problem, hadToken: used !== "" } }));
  }
  throw problem;
}

async function problemOf(answer) {
  const isProblem = answer.headers.get("content-type")?.startsWith("application/problem+json");
  const document = isProblem ? await answer.json().catch(() => ({})) : { title: answer.statusText };
  return new Problem(answer.status, document, Number(answer.headers.get("retry-after")) || RETRY_S);
}

/** The JSON of an answer. */
export async function get(path, params, options) {
  const url = address(path, params);
  const begun = prefetched.get(url.href);
  prefetched.delete(url.href);
  return (await begun) ?? (await send(url, options)).json();
}

const prefetched = new Map();  // promises of JSON by address; null for one that failed

/** Asks for a document before it is needed; the first `get` of it has this answer. */
export function prefetch(path) {
  const document = get(path).catch(() => null);
  prefetched.set(address(path).href, document);
  return document;
}

export async function post(path, body) {
  const options = {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
  };
  return (await send(address(path), options)).json();
}

export async function remove(path) {
  await send(address(path), { method: "DELETE" });
}

/** Saves an answer as a file. */
export async function download(path, params, name) {
  const blob = await (await send(address(path, params))).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The datasets of a list of collections, which has continuous queries, too. */
export function datasetsOf({ collections }) {
  return collections.filter(({ geohashPrecision }) => geohashPrecision);
}

/** The name of the first dataset that holds observations, or of the first one; "" for none. */
export function firstDataset(datasets) {
  return (datasets.find(({ extent }) => extent.temporal.interval[0][0]) ?? datasets[0])?.id ?? "";
}

export function collection(dataset, rest = "") {
  return `collections/${encodeURIComponent(dataset)}${rest}`;
}
