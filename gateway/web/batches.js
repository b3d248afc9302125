// The list of batches: one view a batch, made once and updated from then on.

import { get, post } from "./api.js";
import { byId, Keyed, make, setAttribute, setDisabled, setHidden, setText, setWidth } from "./dom.js";
import { drawErrors } from "./errors.js";
import { at, count, iso, rate, rows, since, span, STATUS, STOPPED, TERMINAL, WAITING } from "./words.js";

const PAGE = 25;
const WHOLE_MS = 5_000; // a page may hold thousands of bad lines: in between, only what runs is asked for
const FEW = 6;
const NAMES = 1_000; // a page may stay open for weeks
const DETAILS = ["Batch", "Model", "Endpoint", "Input", "Priority", "Metadata", "Tokens", "Created", "Started", "Ended", "Expires"];

const news = byId("news");
const notices = byId("notices");
const names = new Map(); // file ids to names; null while one is asked for, and for files that are no more
let statuses = new Map(); // of the batches that are shown, to tell what is new
const pages = [""]; // the `after` of each page up to the one that is shown
let shown = { after: null, at: -Infinity, batches: [] };

const list = new Keyed(byId("batch-list"), makeView, updateView);

export async function refresh() {
  const live = shown.batches.filter((batch) => !TERMINAL.has(batch.status));
  const fresh = shown.after === pages.at(-1) && performance.now() < shown.at + WHOLE_MS;
  return fresh && live.length && live.length <= FEW ? refreshLive(live) : refreshWhole();
}

async function refreshLive(live) {
  const page = shown;
  const found = await Promise.all(live.map((batch) => get(`/v1/batches/${encodeURIComponent(batch.id)}`)));
  const newest = new Map(found.map((batch) => [batch.id, batch]));
  page.batches = page.batches.map((batch) => newest.get(batch.id) ?? batch);
  if (page === shown) show(page.batches);
  return shown.batches;
}

async function refreshWhole() {
  const asked = pages.at(-1);
  const page = await get(`/v1/batches?limit=${PAGE}${asked ? `&after=${encodeURIComponent(asked)}` : ""}`);
  if (asked !== pages.at(-1)) return page.data; // somebody turned the page meanwhile
  shown = { after: asked, at: performance.now(), batches: page.data };
  show(page.data);
  setHidden(byId("batches-empty"), page.data.length > 0);
  setText(byId("batches-empty"), pages.length > 1 ? "There are no older batches." : "No batches yet. Drop a file above.");
  setText(byId("page"), `Page ${pages.length}`);
  setHidden(byId("pages"), pages.length === 1 && !page.has_more);
  setDisabled(byId("newer"), pages.length === 1);
  setDisabled(byId("older"), !page.has_more);
  setAttribute(byId("older"), "data-after", page.last_id ?? "");
  return page.data;
}

function show(batches) {
  list.show(batches, (batch) => batch.id);
  batches.forEach(tellNews);
  statuses = new Map(batches.map((batch) => [batch.id, batch.status]));
}

export async function showNewest() {
  pages.length = 1;
  await refreshWhole();
}

export function start(refreshSoon) {
  byId("older").addEventListener("click", (event) => {
    pages.push(event.currentTarget.dataset.after);
    turned(refreshSoon);
  });
  byId("newer").addEventListener("click", () => {
    pages.pop();
    turned(refreshSoon);
  });
}

async function turned(refreshSoon) {
  await refreshSoon();
  byId("batches").focus({ preventScroll: true });
  byId("batches").scrollIntoView({ block: "start" });
}

// Who can't see the page hears of what begins and ends, not of each figure.
function tellNews(batch) {
  const before = statuses.get(batch.id);
  if (before === undefined || before === batch.status) return;
  const { total, failed } = batch.request_counts;
  const figures = TERMINAL.has(batch.status) && total ? `, ${rows(total)}, ${count(total - failed)} completed` : "";
  setText(news, `${shownName(batch)}: ${STATUS[batch.status] ?? batch.status}${figures}`);
}

function shownName(batch) {
  const name = names.get(batch.input_file_id);
  return typeof name === "string" && name ? name : batch.id;
}

export function nameFile(fileId, name) {
  names.set(fileId, name);
  if (names.size > NAMES) names.delete(names.keys().next().value);
}

async function findName(view, fileId) {
  if (!fileId || names.has(fileId)) return;
  nameFile(fileId, null); // asked for, once
  try {
    const file = await get(`/v1/files/${encodeURIComponent(fileId)}`);
    nameFile(fileId, file.filename);
    setText(view.title, file.filename);
  } catch (error) {
    if (error.status !== 404) names.delete(fileId);
  }
}

function makeView(batch) {
  const title = make("h3", { tabindex: "-1", id: `title-${batch.id}` }, shownName(batch));
  const view = {
    id: batch.id,
    title,
    badge: make("span", { className: "badge" }),
    time: make("time"),
    good: make("span", { className: "good" }),
    bad: make("span", { className: "bad" }),
    figures: make("p", { className: "figures" }),
    waiting: make("p", { className: "waiting" }),
    output: make("a", { className: "button", download: "" }, "Output"),
    errorFile: make("a", { className: "button", download: "" }, "Errors"),
    errors: make("div", { className: "errors" }),
    terms: new Map(),
  };
  view.cancel = make("button", { type: "button", "aria-describedby": title.id, onclick: () => askToCancel(view) }, "Cancel");
  view.bar = make("div", { className: "bar", role: "progressbar", "aria-labelledby": title.id, "aria-valuemin": "0" }, view.good, view.bad);
  const definitions = make("dl");
  for (const term of DETAILS) {
    const value = make("dd");
    const pair = make("div", {}, make("dt", {}, term), value);
    definitions.append(pair);
    view.terms.set(term, { pair, value });
  }
  view.root = make(
    "li",
    { className: "batch", "aria-labelledby": title.id },
    make("div", { className: "line" }, title, view.badge, view.time, make("span", { className: "actions" }, view.output, view.errorFile, view.cancel)),
    view.bar,
    view.figures,
    view.waiting,
    view.errors,
    make("details", {}, make("summary", {}, "Details"), definitions),
  );
  return view;
}

function updateView(view, batch) {
  const { total, completed, failed } = batch.request_counts;
  findName(view, batch.input_file_id);
  setText(view.title, shownName(batch));
  setAttribute(view.root, "data-status", batch.status);
  setText(view.badge, STATUS[batch.status] ?? batch.status);
  setText(view.time, since(batch.created_at));
  setAttribute(view.time, "datetime", iso(batch.created_at));
  setAttribute(view.time, "title", at(batch.created_at));
  setHidden(view.bar, TERMINAL.has(batch.status) && !total);
  setWidth(view.good, total ? completed / total : 0);
  setWidth(view.bad, total ? failed / total : 0);
  setAttribute(view.bar, "aria-valuemax", total || 1);
  setAttribute(view.bar, "aria-valuenow", completed + failed);
  setAttribute(view.bar, "aria-valuetext", total ? `${count(completed + failed)} of ${rows(total)}` : "no rows yet");
  setText(view.figures, figures(batch));
  const waiting = TERMINAL.has(batch.status) ? "" : (WAITING[batch.waiting_reason] ?? "");
  setText(view.waiting, waiting);
  setHidden(view.waiting, !waiting);
  updateActions(view, batch);
  drawErrors(view, batch);
  updateDetails(view, batch);
}

function updateActions(view, batch) {
  for (const [link, fileId] of [[view.output, batch.output_file_id], [view.errorFile, batch.error_file_id]]) {
    setHidden(link, !fileId);
    setAttribute(link, "href", fileId ? `/v1/files/${encodeURIComponent(fileId)}/content` : null);
    setAttribute(link, "aria-label", `${link.textContent} of ${shownName(batch)}`);
  }
  const over = !["validating", "in_progress"].includes(batch.status);
  if (over && document.activeElement === view.cancel) view.title.focus();
  setHidden(view.cancel, over);
  setAttribute(view.cancel, "aria-label", `Cancel ${shownName(batch)}`);
}

function figures(batch) {
  const { total, completed, failed } = batch.request_counts;
  const words = [];
  if (!total) words.push(batch.status === "validating" ? "Reading its lines" : "No rows ran");
  else if (TERMINAL.has(batch.status)) words.push(`${count(completed)} of ${rows(total)} completed`);
  else words.push(`${count(completed + failed)} of ${rows(total)}`);
  // Of rows that didn't complete, most of a batch that was stopped never ran.
  if (failed) words.push(`${count(failed)} ${STOPPED.has(batch.status) ? "not run or failed" : "failed"}`);
  const progress = batch.x_progress;
  if (batch.status === "in_progress" && progress) {
    words.push(`${rate(progress.rows_per_second)} rows/s`);
    if (progress.eta_seconds !== null) words.push(`about ${span(progress.eta_seconds)} left`);
  }
  const ended = endOf(batch);
  if (ended && total) words.push(`took ${span(ended - batch.created_at)}`);
  return words.join(" · ");
}

const endOf = (batch) => batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;

function updateDetails(view, batch) {
  const usage = batch.usage;
  const tokens = usage
    ? `${count(usage.input_tokens)} in (${count(usage.input_tokens_details.cached_tokens)} cached), ${count(usage.output_tokens)} out`
    : "";
  const metadata = Object.entries(batch.metadata ?? {}).map(([key, value]) => `${key}: ${value}`);
  const values = [
    batch.id, batch.model, batch.endpoint, batch.input_file_id, batch.priority, metadata.join("\n"), tokens,
    batch.created_at, batch.in_progress_at, endOf(batch), endOf(batch) ? null : batch.expires_at,
  ];
  DETAILS.forEach((term, index) => {
    const value = typeof values[index] === "number" ? at(values[index]) : (values[index] ?? "");
    const row = view.terms.get(term);
    setHidden(row.pair, !value);
    setText(row.value, value);
  });
}

function askToCancel(view) {
  const dialog = byId("sure");
  setText(byId("sure-text"), view.title.textContent);
  dialog.returnValue = "keep";
  dialog.onclose = async () => {
    if (dialog.returnValue !== "cancel") return;
    view.cancel.disabled = true;
    try {
      const batch = await post(`/v1/batches/${encodeURIComponent(view.id)}/cancel`, {});
      view.title.focus();
      shown.batches = shown.batches.map((other) => (other.id === batch.id ? batch : other));
      show(shown.batches);
    } catch (error) {
      say(`“${view.title.textContent}” can’t be cancelled: ${error.message}`);
    } finally {
      view.cancel.disabled = false;
    }
  };
  dialog.showModal();
}

// Shows a problem until it is dismissed.
export function say(text) {
  const notice = make("p", { className: "notice" }, make("span", {}, text));
  notice.append(make("button", { type: "button", "aria-label": "Dismiss", onclick: () => notice.remove() }, "×"));
  notices.append(notice);
}
