// The query as a command or a program, to paste elsewhere.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { address, collection, hasToken } from "./api.js";
import * as icons from "./icons.js";
import { datetime } from "./time.js";

/** Programs that read the observations of a query, by their names. */
export function programs({ dataset, filter, time }) {
  const params = { filter, datetime: datetime(time) };
  const items = collection(dataset, "/items");
  const url = (f) => address(items, { f, ...params }).href;
  const token = hasToken();
  return {
    Python: [
      "import pandas as pd",
      ...(token ? ["import os"] : []), "",
      `url = ${JSON.stringify(url("parquet"))}`,
      token ? 'headers = {"Authorization": f"Bearer {os.environ[\'GALILEO_TOKEN\']}"}' : "",
      token ? "frame = pd.read_parquet(url, storage_options=headers)" : "frame = pd.read_parquet(url)",
    ].filter((line, index) => line || index === (token ? 2 : 1)).join("\n"),
    curl: [
      `curl -fG ${shell(address(items).href)} -o ${dataset}.csv -d f=csv`,
      ...(token ? ['-H "Authorization: Bearer $GALILEO_TOKEN"'] : []),
      ...Object.entries(params).filter(([, value]) => value).map(([name, value]) => `--data-urlencode ${shell(`${name}=${value}`)}`),
    ].join(" \\\n  "),
    GDAL: [
      ...(token ? ['GDAL_HTTP_BEARER="$GALILEO_TOKEN" GDAL_HTTP_AUTH=BEARER'] : []),
      `ogr2ogr ${dataset}.gpkg ${shell(`CSV:/vsicurl_streaming/${url("csv")}`)}`,
      `-nln ${dataset} -a_srs EPSG:4326 -oo X_POSSIBLE_NAMES=longitude -oo Y_POSSIBLE_NAMES=latitude -oo AUTODETECT_TYPE=YES`,
    ].join(" \\\n  "),
  };
}

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function CopyMenu({ isEnabled, dataset, filter, time }) {
  const [shown, setShown] = useState("");
  const [isCopied, setCopied] = useState(false);
  const area = useRef(null);
  const texts = shown ? programs({ dataset, filter, time }) : {};
  useEffect(() => { setCopied(false); area.current?.focus(); }, [shown]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(texts[shown]);
    } catch {
      area.current.select();
      document.execCommand("copy");
    }
    setCopied(true);
  };
  return html`
    <select aria-label="Copy as" value="" disabled=${!isEnabled} onChange=${(event) => { setShown(event.target.value); event.target.value = ""; }}>
      <option value="">Copy as…</option>
      ${["Python", "curl", "GDAL"].map((name) => html`<option value=${name}>${name}</option>`)}
    </select>
    ${shown && html`<div class="editor copy" role="group" aria-label=${`The query for ${shown}`}>
      <textarea ref=${area} readonly rows="8" value=${texts[shown]} aria-label=${`The query for ${shown}`} />
      ${hasToken() && html`<p class="hint">It reads your token from GALILEO_TOKEN.</p>`}
      <div class="row"><button class="primary" onClick=${copy}>${icons.COPY} ${isCopied ? "Copied" : "Copy"}</button>
        <button onClick=${() => setShown("")}>Close</button></div>
    </div>`}`;
}
