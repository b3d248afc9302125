// Files that are dropped or chosen: uploaded one after the other, each becomes a batch.

import { post, upload } from "./api.js";
import { nameFile } from "./batches.js";
import { byId, make, setText, setWidth } from "./dom.js";
import { bytes } from "./words.js";

let turn = Promise.resolve();

export function start(created) {
  const drop = byId("drop");
  const input = byId("file");
  const take = (files) => {
    for (const file of files) turn = turn.then(() => run(file, created));
  };
  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = ""; // the same file can be chosen again
  });
  byId("new").addEventListener("submit", (event) => event.preventDefault());

  let inside = 0; // dragenter and dragleave come for children, too
  const over = (on) => drop.classList.toggle("over", on);
  drop.addEventListener("dragenter", () => over(++inside > 0));
  drop.addEventListener("dragleave", () => over(--inside > 0));
  drop.addEventListener("drop", (event) => {
    inside = 0;
    over(false);
    take([...event.dataTransfer.files]);
  });
  // A file that misses the area must not replace the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
}

async function run(file, created) {
  const view = makeView(file);
  byId("uploads").prepend(view.root);
  try {
    const stored = await upload(file, (part) => {
      setWidth(view.bar, part);
      setText(view.state, part < 1 ? `${Math.round(part * 100)} % of ${bytes(file.size)}` : "Storing…");
    });
    nameFile(stored.id, stored.filename);
    setText(view.state, "Creating the batch…");
    const batch = await post("/v1/batches", body(stored.id));
    setWidth(view.bar, 1);
    setText(view.state, "Batch created");
    view.root.dataset.state = "done";
    window.setTimeout(() => view.root.remove(), 8_000);
    await created(batch);
  } catch (error) {
    view.root.dataset.state = "failed";
    view.state.setAttribute("role", "alert");
    setText(view.state, error.message);
    view.root.append(make("button", { type: "button", "aria-label": `Dismiss ${file.name}`, onclick: () => view.root.remove() }, "×"));
  }
}

function body(fileId) {
  const wanted = {
    input_file_id: fileId,
    endpoint: byId("endpoint").value,
    completion_window: "24h",
    priority: byId("priority").value,
  };
  if (byId("bad-lines").value) wanted.invalid_rows = byId("bad-lines").value;
  return wanted;
}

function makeView(file) {
  const view = { state: make("span", { className: "below", role: "status" }, "Waiting…"), bar: make("span") };
  view.root = make(
    "li",
    {},
    make("div", { className: "line" }, make("strong", {}, file.name), view.state),
    make("div", { className: "meter", "aria-hidden": "true" }, view.bar),
  );
  return view;
}
