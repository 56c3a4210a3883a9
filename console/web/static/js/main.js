// Starts the console: session, data, frame.

import { Problem, get, remove } from "./api.js";
import { Data } from "./data.js";
import { App } from "./app.js";
import { login } from "./views/login.js";
import { complain } from "./ui/dialog.js";
import { h, show } from "./ui/dom.js";
import { button, problemBox } from "./ui/parts.js";
import { applyTheme } from "./ui/theme.js";

const root = document.getElementById("app");
const RETRY_MS = 3000;
let beginning = null;
let retry = 0;

applyTheme();
start();

/** Start, or start again. Only the latest start counts: a slow earlier one is dropped. */
async function start(why = "") {
  clearTimeout(retry);
  // Without this it would continue to read.
  beginning?.stop();
  const data = (beginning = new Data());
  let who;
  try {
    who = await get("/whoami");
    await data.start();
  } catch (problem) {
    data.stop();
    if (data !== beginning) return;
    if (problem instanceof Problem && problem.status === 401) login(root, () => start(), why);
    else away(problem);
    return;
  }
  if (data !== beginning) return;
  const app = new App(root, data, who, {
    leave: () => leave(app),
    expired: () => restart(app, "the session has ended"),
    another: () => restart(app, ""),
  });
  app.show();
  // For tests and benchmarks; the console itself does not use it.
  window.lightloom = app;
}

function restart(app, why) {
  app.destroy();
  start(why);
}

async function leave(app) {
  try {
    await remove("/session");
  } catch (problem) {
    if (problem.status !== 401) {
      complain(problem);
      return;
    }
  }
  restart(app, "");
}

function away(problem) {
  if (!(problem instanceof Problem)) console.error(problem);
  const known = problem instanceof Problem ? problem : new Problem(0, { detail: "the console could not start", hint: "reload the page" });
  show(root, h("main", { id: "main", class: "gate" }, h("div", { class: "login" }, h("h1", {}, "lightloom"), problemBox(known), button("Try again", () => start(), { kind: "primary" }))));
  if (known.status === 0 || known.status === 503) retry = setTimeout(() => start(), RETRY_MS);
}
