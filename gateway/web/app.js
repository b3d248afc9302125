// The page's heart: asks for what is shown, as often as there is something new to expect.

import * as batches from "./batches.js";
import { byId, setText } from "./dom.js";
import * as mesh from "./mesh.js";
import * as upload from "./upload.js";
import { TERMINAL } from "./words.js";

const BUSY_MS = 1_000;
const IDLE_MS = 4_000;
const AWAY_MS = 3_000;

let timer = 0;
let running = null;

async function refresh() {
  window.clearTimeout(timer);
  let pause = IDLE_MS;
  try {
    const shown = await batches.refresh();
    const rest = await Promise.allSettled([mesh.refreshPool(shown), mesh.refreshModels(), mesh.refreshHealth()]);
    const broken = rest.find((one) => one.status === "rejected");
    if (broken) throw broken.reason;
    if (shown.some((batch) => !TERMINAL.has(batch.status))) pause = BUSY_MS;
    setText(byId("updated"), "");
  } catch (error) {
    mesh.showHealth("away", error.message);
    setText(byId("updated"), "What is shown may be old.");
    pause = AWAY_MS;
  }
  if (!document.hidden) timer = window.setTimeout(refreshSoon, pause);
}

// One at a time; who asks while one is under way gets another one after it.
function refreshSoon() {
  window.clearTimeout(timer);
  running = (running ?? Promise.resolve()).then(refresh);
  return running;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) window.clearTimeout(timer);
  else refreshSoon();
});

batches.start(refreshSoon);
upload.start(async () => {
  await batches.showNewest().catch(() => {}); // the batch is there all the same
  refreshSoon();
});
refreshSoon();
