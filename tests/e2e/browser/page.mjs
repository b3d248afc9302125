// Uses the web page as a person does, in Chromium, and prints what it saw. Arguments: the base URL, the browser, a scratch folder.

import { readFile, readdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const [base, executablePath, scratch] = process.argv.slice(2);
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const seen = { console: [], refused: [], hosts: [] };

const browser = await puppeteer.launch({
  executablePath,
  headless: "shell",
  args: ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"],
  userDataDir: join(scratch, "profile"),
});
const page = await browser.newPage();
await page.setViewport({ width: 1200, height: 900 });
await page.evaluateOnNewDocument(() => {
  window.xssRan = false;
  window.mostKept = 0; // in any of the page's maps
  const { set } = Map.prototype;
  Map.prototype.set = function (...pair) {
    set.apply(this, pair);
    window.mostKept = Math.max(window.mostKept, this.size);
    return this;
  };
});
page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
page.on("pageerror", (error) => seen.console.push(`thrown: ${error.message}`));
page.on("dialog", (dialog) => seen.console.push(`dialog: ${dialog.message()}`) && dialog.dismiss());
page.on("request", (request) => seen.hosts.push(new URL(request.url()).host));
page.on("response", (response) => response.status() >= 400 && seen.refused.push(`${response.status()} ${new URL(response.url()).pathname}`));
const downloads = await browser.target().createCDPSession();
await downloads.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: scratch });

const text = (selector) => page.$eval(selector, (element) => element.textContent);
const shot = (name) => page.screenshot({ path: join(scratch, `${name}.png`), fullPage: true });
const line = (id, content = "hello", url = "/v1/chat/completions") =>
  JSON.stringify({ custom_id: id, method: "POST", url, body: { model: "echo", messages: [{ role: "user", content }] } });
const lines = (count, content) => Array.from({ length: count }, (_, n) => line(`row-${n}`, content?.(n))).join("\n") + "\n";

// The batch whose title is `name`: what it shows, once `status` is reached.
async function batch(name, status) {
  const found = await page.waitForFunction(
    (name, status) => {
      for (const root of document.querySelectorAll(".batch")) {
        if (root.querySelector("h3").textContent !== name || root.querySelector(".badge").textContent !== status) continue;
        return root;
      }
      return null;
    },
    { polling: 20, timeout: 60_000 },
    name,
    status,
  );
  return found.asElement();
}

async function choose(name, content) {
  const path = join(scratch, name);
  await writeFile(path, content);
  await (await page.$("#file")).uploadFile(path);
}

async function drop(name, content) {
  await page.evaluate(
    (name, content) => {
      const data = new DataTransfer();
      data.items.add(new File([content], name));
      for (const kind of ["dragenter", "dragover", "drop"]) {
        document.getElementById("drop").dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
      }
    },
    name,
    content,
  );
}

async function violations() {
  await page.evaluate(axe);
  const results = await page.evaluate(() => window.axe.run());
  return results.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.target.join(" ")).join(", ")}`);
}

// -- an empty mesh
await page.goto(base, { waitUntil: "load" });
await page.waitForSelector('#health[data-state="healthy"]');
await page.waitForSelector("#engine-list li");
seen.empty = { health: await text("#health-text"), batches: await text("#batches-empty"), engine: await text("#engine-list li strong"), model: await text("#model-list strong") };
await shot("1-empty");

// -- a file with a nasty name: chosen, and it runs to its end
const script = "<script>window.xssRan=true<script>.jsonl";
await choose(script, lines(400, (n) => (n === 7 ? "please fail" : `text ${n}`)));
await batch(script, "Running");
seen.steps = await page.evaluate(async () => {
  const bar = document.querySelector(".batch .bar");
  const steps = new Set();
  while (document.querySelector(".batch .badge").textContent === "Running") {
    steps.add(Number(bar.getAttribute("aria-valuenow")));
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return [...steps];
});
const done = await batch(script, "Completed");
seen.figures = await done.$eval(".figures", (element) => element.textContent);
seen.links = await done.$$eval("a.button:not([hidden])", (links) => links.map((link) => link.getAttribute("aria-label")));
seen.news = await text("#news");

// -- its output, by the link
await (await done.$("a.button")).click();
let files = [];
while (!(files = (await readdir(scratch)).filter((name) => name.startsWith("batch_output_") && name.endsWith(".jsonl"))).length) {
  await new Promise((resolve) => setTimeout(resolve, 50));
}
seen.output = (await readFile(join(scratch, files[0]), "utf8")).trimEnd().split("\n").map((one) => JSON.parse(one).custom_id);

// -- a file that is dropped, with another nasty name, and cancelled: first thought better of, then not
const image = '<img src=x onerror="window.xssRan=true">.jsonl';
await drop(image, lines(5_000, (n) => `text ${n}`));
const running = await batch(image, "Running");
await shot("2-running");
await (await running.$("button")).click();
await page.waitForSelector("#sure[open]");
seen.dialog = { asks: await text("#sure-text"), focus: await page.evaluate(() => document.activeElement.textContent) };
await shot("3-sure");
await page.keyboard.press("Escape");
await page.waitForSelector("#sure:not([open])");
seen.kept = await running.$eval(".badge", (element) => element.textContent);
await (await running.$("button")).focus();
await page.keyboard.press("Enter");
await page.waitForSelector("#sure[open]");
await page.keyboard.press("Tab");
await page.keyboard.press("Enter");
const cancelled = await batch(image, "Cancelled");
seen.cancelled = { focus: await page.evaluate(() => document.activeElement.textContent), button: await cancelled.$eval("button", (button) => button.hidden) };

// -- bad lines, told with their numbers; and what isn't taken at all
const bad = Array.from({ length: 14 }, (_, n) => line(`row-${n}`, "x", "/v1/<b>nothing</b>"));
await choose("bad.jsonl", [line("good"), ...bad].join("\n"));
const failed = await batch("bad.jsonl", "Failed");
seen.bad = await failed.$$eval("tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
await (await failed.$(".errors summary")).click();
await page.waitForFunction((root) => root.querySelectorAll("tbody tr").length === 14, {}, failed);
await choose("notes.txt", "hello");
await page.waitForSelector('#uploads [data-state="failed"]');
seen.notTaken = await text('#uploads [data-state="failed"] .below');
await shot("4-failed");

// -- the list can't be had just after a batch was created
await page.evaluate(() => {
  const { fetch } = window;
  window.fetch = (path, ...rest) => (path.startsWith("/v1/batches?") ? Promise.reject(new TypeError("cut")) : fetch(path, ...rest));
  window.mend = () => (window.fetch = fetch);
});
await choose("unlisted.jsonl", lines(1));
const unlisted = await page.waitForFunction(() => {
  const uploads = [...document.querySelectorAll("#uploads li[data-state]")];
  return uploads.find((upload) => upload.querySelector("strong").textContent === "unlisted.jsonl");
});
await page.waitForSelector('#health[data-state="away"]');
seen.unlisted = await unlisted.evaluate((upload) => [upload.dataset.state, upload.querySelector(".below").textContent]);
await page.evaluate(() => window.mend());
await batch("unlisted.jsonl", "Completed");
await page.waitForSelector('#health[data-state="healthy"]');

// -- for everybody
await (await done.$("summary")).click();
seen.axe = { light: await violations() };
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
seen.axe.dark = await violations();
await shot("5-dark");
await page.setViewport({ width: 360, height: 740, isMobile: true, deviceScaleFactor: 2 });
seen.axe.phone = await violations();
seen.overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
await shot("6-phone-dark");
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
await shot("7-phone");
await page.setViewport({ width: 1200, height: 900 });

// -- more batches than fit: a hundred that fail at once, made past the page
for (let made = 0; made < 105; made += 1) {
  const body = { input_file_id: "file-nope", endpoint: "/v1/chat/completions", completion_window: "24h" };
  const headers = { "content-type": "application/json" };
  await fetch(`${base}/v1/batches`, { method: "POST", headers, body: JSON.stringify(body) });
}
await page.reload({ waitUntil: "load" });
await page.waitForSelector(".batch");
seen.titles = [];
seen.pages = 0;
for (let more = true; more; ) {
  seen.pages += 1;
  await page.waitForFunction((wanted) => document.getElementById("page").textContent === wanted, {}, `Page ${seen.pages}`);
  seen.titles.push(...(await page.$$eval(".batch h3", (titles) => titles.map((title) => title.id))));
  more = await page.$eval("#older", (button) => !button.disabled);
  if (more) await page.click("#older");
}
await shot("8-last-page");
while (!(await page.$eval("#newer", (button) => button.disabled))) {
  const before = await text("#page");
  await page.click("#newer");
  await page.waitForFunction((before) => document.getElementById("page").textContent !== before, {}, before);
}
seen.back = await text("#page");
seen.mostKept = await page.evaluate(() => window.mostKept);

// -- nothing moves that didn't change
seen.mutations = await page.evaluate(async () => {
  const changed = [];
  const watching = new MutationObserver((changes) => {
    for (const { target } of changes) if (target.tagName !== "TIME") changed.push(`${target.tagName} ${target.id}: ${target.textContent}`);
  });
  watching.observe(document.querySelector("main"), { subtree: true, childList: true, attributes: true, characterData: true });
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  return changed;
});

// -- the server away, and back
await page.setOfflineMode(true);
await page.waitForSelector('#health[data-state="away"]');
seen.away = { health: await text("#health-text"), updated: await text("#updated"), batches: (await page.$$(".batch")).length };
await page.setOfflineMode(false);
await page.waitForSelector('#health[data-state="healthy"]');
seen.console = seen.console.filter((one) => !one.includes("ERR_INTERNET_DISCONNECTED"));
seen.xssRan = await page.evaluate(() => window.xssRan);
seen.hosts = [...new Set(seen.hosts)];
console.log(JSON.stringify(seen));
await browser.close();
