// The dialog that asks for a token. It is kept in memory, or for the tab if the user wishes.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { hasToken, refusals, useToken } from "./api.js";

/** Args: isOpen, open(), close(); changed() is called for another token. It opens when the gateway refuses one. */
export function TokenDialog({ isOpen, open, close, changed }) {
  const dialog = useRef(null), input = useRef(null);
  const [refusal, setRefusal] = useState("");
  useEffect(() => {
    const refused = ({ detail }) => {
      setRefusal(detail.hadToken ? detail.problem.message : "");
      open();
    };
    refusals.addEventListener("refused", refused);
    return () => refusals.removeEventListener("refused", refused);
  }, []);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setRefusal("");
    useToken(form.get("token").trim(), form.get("kept") === "on");
    input.current.value = "";
    close();
    changed();
  };
  const forget = () => { useToken("", false); close(); changed(); };
  return html`<dialog ref=${dialog} class="token" aria-labelledby="token-title" onClose=${close}>
    <form onSubmit=${submit}>
      <h2 id="token-title">Your token</h2>
      <p>The cluster asks who you are. A token is what <code>galileo token create</code> printed. It goes to this gateway
        and nowhere else, and it is never part of the page's address.</p>
      ${refusal && html`<p class="problem" role="alert">${refusal}</p>`}
      <label class="field">Token
        <input ref=${input} name="token" type="password" autocomplete="off" spellcheck="false" required autofocus /></label>
      <label class="check"><input name="kept" type="checkbox" /> <span>Keep it while this tab is open</span></label>
      <div class="row actions"><button class="primary">Use this token</button>
        ${hasToken() && html`<button type="button" onClick=${forget}>Forget the token</button>`}
        <button type="button" onClick=${close}>Cancel</button></div>
    </form>
  </dialog>`;
}
