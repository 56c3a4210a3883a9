// Signing in: a token for a session. The page sends the token to the controller once and does not
// keep it; scripts cannot read the session's cookie.

import { post } from "../api.js";
import { h, show } from "../ui/dom.js";
import { button, problemBox } from "../ui/parts.js";

/** Show the form; `done` is called once there is a session. */
export function login(root, done, why = "") {
  const trouble = h("div", { class: "muted" }, why);
  const token = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, "aria-label": "Token", placeholder: "ll_…" });
  const go = button("Sign in", () => {}, { kind: "primary", type: "submit" });
  const form = h(
    "form",
    { class: "login", onsubmit: enter },
    h("img", { src: "/console/icon.svg", alt: "", width: 48, height: 48 }),
    h("h1", {}, "lightloom"),
    h("label", {}, h("span", {}, "Token"), token),
    trouble,
    go,
    h("p", { class: "muted" }, "An administrator creates tokens: ", h("code", {}, "lightloom token create")),
  );
  show(root, h("main", { id: "main", class: "gate" }, form));
  token.focus();

  async function enter(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      await post("/session", { token: token.value.trim() });
      done();
    } catch (problem) {
      go.disabled = false;
      token.value = "";
      token.focus();
      show(trouble, problemBox(problem));
    }
  }
}
