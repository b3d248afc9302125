// What the mesh is made of and how busy it is: tiles, engines, models, health.

import { get } from "./api.js";
import { byId, Keyed, make, setAttribute, setHidden, setText, setWidth } from "./dom.js";
import { at, compact, count, rate } from "./words.js";

const MODELS_MS = 10_000;
const HEALTH_MS = 3_500; // each look has all services checked

const engines = new Keyed(byId("engine-list"), makeEngine, updateEngine);
const models = new Keyed(byId("model-list"), makeModel, updateModel);
let modelsAt = -Infinity;
let healthAt = -Infinity;

export async function refreshPool(batches) {
  const pool = await get("/v1/pool/status");
  const running = batches.filter((batch) => batch.status === "in_progress" && batch.x_progress);
  const sum = (name) => running.reduce((total, batch) => total + batch.x_progress[name], 0);
  tile("rate", rate(sum("rows_per_second")), `${rate(sum("tokens_per_second"))} tokens/s, of those below`);
  tile("batches", count(pool.active_batches), "with rows left");
  tile("intake", compact(pool.intake_pool_size), `room for ${compact(pool.intake_pool_capacity)}`);
  const slots = pool.engines.reduce((total, engine) => total + engine.slots, 0);
  tile("slots", count(pool.scheduling_pool_active), slots === 1 ? "1 slot" : `${count(slots)} slots`);
  setWidth(byId("tile-intake-bar"), pool.intake_pool_size / pool.intake_pool_capacity);
  setWidth(byId("tile-slots-bar"), slots ? pool.scheduling_pool_active / slots : 0);
  engines.show(pool.engines, (engine) => engine.id);
  setHidden(byId("engines-empty"), pool.engines.length > 0);
  setText(byId("engines-empty"), "No engine is connected.");
}

export async function refreshModels() {
  if (performance.now() < modelsAt + MODELS_MS) return;
  const found = await get("/v1/models");
  modelsAt = performance.now();
  models.show(found.data, (model) => model.id);
  setHidden(byId("models-empty"), found.data.length > 0);
  setText(byId("models-empty"), "No model is served.");
}

export async function refreshHealth() {
  if (performance.now() < healthAt + HEALTH_MS) return;
  const health = await get("/health", { failing: true });
  showHealth(health.status, health.status === "healthy" ? "Healthy" : sentence(health.reason ?? "unhealthy"));
}

export function showHealth(state, text) {
  setAttribute(byId("health"), "data-state", state);
  setText(byId("health-text"), text);
  healthAt = state === "away" ? -Infinity : performance.now();
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function tile(name, figure, below) {
  setText(byId(`tile-${name}`), figure);
  setText(byId(`tile-${name}-below`), below);
}

function makeEngine() {
  const view = {
    name: make("strong"),
    state: make("span", { className: "badge" }),
    what: make("span", { className: "below" }),
    active: make("span", { className: "below" }),
    bar: make("span"),
  };
  view.root = make(
    "li",
    {},
    make("div", { className: "line" }, view.name, view.state),
    make("div", { className: "line" }, view.what, view.active),
    make("div", { className: "meter", "aria-hidden": "true" }, view.bar),
  );
  return view;
}

function updateEngine(view, engine) {
  setText(view.name, engine.id);
  setText(view.state, engine.state);
  setAttribute(view.root, "data-state", engine.state);
  setText(view.what, engine.model ? `${engine.backend} · ${engine.model}` : engine.backend);
  setText(view.active, `${count(Math.min(engine.active, engine.slots))} of ${count(engine.slots)} slots`);
  setWidth(view.bar, engine.slots ? engine.active / engine.slots : 0);
}

function makeModel() {
  const view = { name: make("strong"), what: make("span", { className: "below" }) };
  view.root = make("li", {}, make("div", { className: "line" }, view.name, view.what));
  return view;
}

function updateModel(view, model) {
  setText(view.name, model.id);
  setText(view.what, model.owned_by);
  setAttribute(view.root, "title", model.created ? at(model.created) : null);
}
