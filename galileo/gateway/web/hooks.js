// Hooks of components: the fragment, and answers of the gateway.

import { useEffect, useState } from "./vendor/htm-preact.js";
import { nextAttempt } from "./connection.js";
import { fragment, subscribe } from "./fragment.js";

const RETRY_MS_MAX = 5_000;

/** A media query: telephones and narrow windows, as in the stylesheet. */
export const NARROW = "(max-width: 800px)";

export function useFragment() {
  const [value, set] = useState(fragment());
  useEffect(() => subscribe(set), []);
  return value;
}

/** An answer: `load(signal)` called anew when `dependencies` change, and every `everyMs` if given.
 *
 * `delayMs` is waited before another value replaces one, as dependencies may change quickly.
 * The last value stays while the next one is on its way, as long as `scope` is the same. An answer
 * that failed for a while is asked for again. With another token the page begins anew.
 */
export function useAnswer(load, dependencies, { isEnabled = true, delayMs = 0, everyMs = 0, scope = "" } = {}) {
  const [state, set] = useState({ scope, value: null, problem: null, isPending: isEnabled });
  const isFirst = state.scope !== scope || !(state.value || state.problem);
  useEffect(() => {
    const aborting = new AbortController();
    const options = { scope, delayMs: isFirst ? 0 : delayMs, everyMs, signal: aborting.signal };
    if (isEnabled) repeat(load, set, options);
    else set({ scope, value: null, problem: null, isPending: false });
    return () => aborting.abort();
  }, [...dependencies, isEnabled, scope]);
  return state.scope === scope ? state : { scope, value: null, problem: null, isPending: isEnabled };
}

async function repeat(load, set, { scope, delayMs, everyMs, signal }) {
  const keep = (state) => (state.scope === scope ? state.value : null);
  set((state) => ({ scope, value: keep(state), problem: null, isPending: true }));
  await pause(delayMs, signal);
  for (let failures = 0; !signal.aborted;) {
    try {
      const value = await load(signal);
      if (signal.aborted) return;
      set({ scope, value, problem: null, isPending: false });
      failures = 0;
      if (!everyMs) return;
      await pause(everyMs, signal);
      if (document.hidden) await seen(signal);
    } catch (problem) {
      if (signal.aborted) return;
      if (problem.status === undefined) throw problem;  // a bug of the page
      failures += 1;
      set((state) => ({ scope, value: keep(state), problem, isPending: problem.isTransient }));
      if (problem.isTransient) await attempt(problem, failures, signal);
      else if (everyMs && problem.status !== 401) await pause(everyMs, signal);
      else return;
    }
  }
}

/** Resolves when a request that failed so many times may be sent again. */
export function attempt(problem, failures, signal) {
  if (problem.status === 0) return nextAttempt(signal);
  return pause(Math.min(RETRY_MS_MAX, Math.max(problem.retryAfterS * 1000, 500 * 2 ** failures)), signal);
}

/** Resolves after a time, or when the signal is aborted. */
export function pause(ms, signal) {
  if (!ms || signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** Resolves when the page is visible again. */
function seen(signal) {
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** Whether a media query holds. */
export function useMedia(query) {
  const [matches, set] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query), changed = () => set(media.matches);
    changed();
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, [query]);
  return matches;
}
