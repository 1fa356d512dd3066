// Icons, 24 by 24, drawn in the colour of the text.

import { html } from "./vendor/htm-preact.js";

const drawn = (path) => html`<svg class="stroke" viewBox="0 0 24 24" aria-hidden="true"><path d=${path} /></svg>`;

export const ADD = drawn("M12 5v14M5 12h14");
export const REMOVE = drawn("M5 12h14");
export const CLOSE = drawn("M6 6l12 12M18 6L6 18");
export const BOX = drawn("M4 6h16v12H4z");
export const POLYGON = drawn("M5 17L4 8l8-4 8 5-3 10z");
export const POINT = drawn("M12 21c-4-5-6-8-6-11a6 6 0 0112 0c0 3-2 6-6 11zM12 12a2 2 0 100-4 2 2 0 000 4z");
export const FIT = drawn("M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5");
export const BELL = drawn("M6 16V11a6 6 0 0112 0v5l1.5 2h-15zM10 20.5h4");
export const SUN = drawn("M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5");
export const MOON = drawn("M20 14.5A8 8 0 119.5 4a6.5 6.5 0 0010.5 10.5z");
export const COPY = drawn("M9 9h11v11H9zM5 15H4V4h11v1");
export const DOWNLOAD = drawn("M12 4v11M7 11l5 5 5-5M5 20h14");
export const KEY = drawn("M15 4a5 5 0 11-4.6 7L4 17.4V20h3v-2h2v-2h2l1.8-1.8A5 5 0 0115 4zM16 8h.01");
