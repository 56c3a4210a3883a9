// Modal dialogs and short notices.

import { h, show } from "./dom.js";
import { button, problemBox } from "./parts.js";

const NOTICE_MS = 6000;

/** Open a dialog; returns a function that closes it. The browser manages the focus. */
export function open(title, content, { wide = false, onClose = null } = {}) {
  const close = () => box.close();
  const box = h(
    "dialog",
    { class: wide ? "dialog wide" : "dialog", "aria-label": title },
    h("header", {}, h("h2", {}, title), h("button", { type: "button", class: "button plain", "aria-label": "Close", onclick: close }, "✕")),
    content,
  );
  box.addEventListener("close", () => {
    box.remove();
    onClose?.();
  });
  document.body.append(box);
  box.showModal();
  return close;
}

/** Close all dialogs: they belong to the previous page. */
export function closeAll() {
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
}

/** Ask before a change that is hard to undo. `act` may fail with a Problem. */
export function confirm(title, lines, verb, act, { kind = "primary" } = {}) {
  const trouble = h("div", {});
  const yes = button(verb, run, { kind });
  const close = open(
    title,
    h("div", { class: "stack" }, lines, trouble, h("footer", {}, button("Cancel", () => close()), yes)),
  );
  yes.focus();
  async function run() {
    yes.disabled = true;
    try {
      await act();
      close();
    } catch (problem) {
      yes.disabled = false;
      // The dialog may be closed already; the user still has to see the error.
      if (yes.isConnected) show(trouble, problemBox(problem));
      else complain(problem);
    }
  }
}

/** Show a notice for a few seconds. */
export function notice(text, tone = "") {
  const box = document.querySelector(".notices") ?? document.body.appendChild(h("div", { class: "notices", role: "status" }));
  const line = h("p", { class: `notice ${tone}` }, text);
  box.append(line);
  setTimeout(() => line.remove(), NOTICE_MS);
}

/** Show an error as a notice, where the page has no better place for it. */
export function complain(problem) {
  notice(problem.hint ? `${problem.message} — ${problem.hint}` : problem.message, "bad");
}

/** Do something and show its error, if any. */
export async function attempt(act, done = "") {
  try {
    const result = await act();
    if (done) notice(done);
    return result;
  } catch (problem) {
    complain(problem);
    return null;
  }
}
