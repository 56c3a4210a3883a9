// Modal dialogs and short notices.

import { h, show } from "./dom.js";
import { button, problemBox } from "./parts.js";

const NOTICE_MS = 6000;

/** Open a dialog; returns what closes it. The browser keeps focus inside and gives it back. */
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

/** Close what is open: it belongs to a page that is left. */
export function closeAll() {
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
}

/** Ask before something that can not be taken back lightly. `act` may fail with a Problem. */
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
      // Who has closed the dialog is to hear of it all the same.
      if (yes.isConnected) show(trouble, problemBox(problem));
      else complain(problem);
    }
  }
}

/** Say something for a few seconds. */
export function notice(text, tone = "") {
  const box = document.querySelector(".notices") ?? document.body.appendChild(h("div", { class: "notices", role: "status" }));
  const line = h("p", { class: `notice ${tone}` }, text);
  box.append(line);
  setTimeout(() => line.remove(), NOTICE_MS);
}

/** Say what went wrong, where there is no better place. */
export function complain(problem) {
  notice(problem.hint ? `${problem.message} — ${problem.hint}` : problem.message, "bad");
}

/** Do something and say what went wrong. */
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
