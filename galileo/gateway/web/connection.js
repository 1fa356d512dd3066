// Whether the gateway answers. While it does not, all requests that wait for it are sent again at the
// same moments, which the page counts down to.

import { useEffect, useState } from "./vendor/htm-preact.js";

const WAITS_MS = [1_000, 2_000, 4_000, 8_000];  // then the last one again

let state = { isLost: false, failures: 0, retryAt: 0 };
let timer = 0;
const waiting = new Set(), listeners = new Set();

function become(next) {
  state = { ...state, ...next };
  for (const listener of listeners) listener(state);
}

function release() {
  clearTimeout(timer);
  const resolves = [...waiting];
  waiting.clear();
  for (const resolve of resolves) resolve();
}

/** A request had an answer, whichever. */
export function answered() {
  if (!state.isLost) return;
  become({ isLost: false, failures: 0, retryAt: 0 });
  release();
}

/** A request had none. Those that fail before the next moment count as one. */
export function lost() {
  if (state.isLost && performance.now() < state.retryAt) return;
  const waitMs = WAITS_MS[Math.min(state.failures, WAITS_MS.length - 1)];
  clearTimeout(timer);
  timer = setTimeout(release, waitMs);
  become({ isLost: true, failures: state.failures + 1, retryAt: performance.now() + waitMs });
}

/** Sends all requests that wait again at once. */
export function retryNow() {
  if (state.isLost) become({ failures: 0, retryAt: 0 });
  release();
}

/** Resolves at the moment of the next attempt, or when the signal is aborted. */
export function nextAttempt(signal) {
  if (!state.isLost || signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    waiting.add(resolve);
    signal.addEventListener("abort", () => { waiting.delete(resolve); resolve(); }, { once: true });
  });
}

addEventListener("online", retryNow);

/** {isLost, seconds} until the next attempt, as they change. */
export function useConnection() {
  const [{ isLost, retryAt }, set] = useState(state);
  const [now, setNow] = useState(performance.now());
  useEffect(() => { listeners.add(set); return () => listeners.delete(set); }, []);
  useEffect(() => {
    if (!isLost) return undefined;
    setNow(performance.now());
    const ticks = setInterval(() => setNow(performance.now()), 250);
    return () => clearInterval(ticks);
  }, [isLost, retryAt]);
  return { isLost, seconds: Math.max(0, Math.ceil((retryAt - now) / 1000)) };
}
