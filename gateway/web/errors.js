// What was wrong with the input of a failed batch, line by line.

import { make, setHidden } from "./dom.js";
import { count } from "./words.js";

const FIRST = 10;

// A failed batch never changes: its errors are drawn once.
export function drawErrors(view, batch) {
  const found = batch.errors?.data ?? [];
  const drawn = !!(found.length || batch.error);
  setHidden(view.errors, !drawn);
  if (!drawn || view.errors.childElementCount) return;
  const lines = found.filter((error) => error.line !== null);
  const others = found.filter((error) => error.line === null).map((error) => error.message);
  if (!found.length) others.push(batch.error.message);
  if (lines.length) view.errors.append(table(lines.slice(0, FIRST), `Bad lines of ${batch.id}`));
  const rest = lines.slice(FIRST);
  if (rest.length) {
    const more = make("details", {}, make("summary", {}, `${count(rest.length)} more`));
    more.addEventListener("toggle", () => more.append(table(rest, `More bad lines of ${batch.id}`)), { once: true });
    view.errors.append(more);
  }
  view.errors.append(...others.map((message) => make("p", {}, message)));
}

function table(errors, label) {
  const body = make("tbody");
  for (const error of errors) {
    const cells = [make("td", { className: "number" }, count(error.line)), make("td", { className: "code" }, error.code), make("td", {}, error.message)];
    body.append(make("tr", {}, ...cells));
  }
  const head = make("tr", {}, ...["Line", "Code", "What is wrong"].map((name) => make("th", { scope: "col" }, name)));
  return make("div", { className: "scroll", role: "region", "aria-label": label, tabindex: "0" }, make("table", {}, make("thead", {}, head), body));
}
