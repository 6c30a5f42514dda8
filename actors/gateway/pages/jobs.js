// SPDX-License-Identifier: Apache-2.0
// The page that creates fine-tuning jobs, shows their progress and compares their results.
import {drawCurve} from "/pages/curve.js";
import {attempt, byId, getJson, listModels, make, numberIn, poll, postJson, request, setOptions,
  start} from "/pages/page.js";

const kJobs = "/v1/fine_tuning/jobs";
const kPeriodMs = 2000;
const kPageSize = 100;
const kMaxPages = 50;  // of events; a longer job shows its newest ones
const kMaxShownEvents = 200;
const kMaxPrompts = 50;
const kQuickstartFile = "file-quickstart";
const kQuickstartPrompts = ["38+86=", "57+68=", "47+19=", "99+11=", "23+45="];
const kResponseTokens = 256;  // of a comparison, if the context is long
const kActive = new Set(["validating_files", "queued", "running", "paused"]);
const kExampleGrader = {type: "string_check", name: "equal", operation: "eq",
  input: "{{sample.output_text}}", reference: "{{item.answer}}"};

let context = Infinity;    // of the base model, in tokens
let jobs = [];
let selected = null;       // the id of a job
let events = [];           // of the selected job, oldest first
const comparisons = new Map();  // by job: [{prompt, before, after}]

const jobPath = (id, rest = "") => `${kJobs}/${encodeURIComponent(id)}${rest}`;
const time = (seconds) => seconds ? new Date(seconds * 1000).toLocaleString() : "";

// -- comparisons ----------------------------------------------------------------------------------

async function ask(model, prompt) {
  // In a short context, the server's limit is the rest of the context.
  const max_tokens = context < 4 * kResponseTokens ? undefined : kResponseTokens;
  const response = await postJson("/v1/chat/completions", {model,
    messages: [{role: "user", content: prompt}], temperature: 0, max_tokens});
  return (await response.json()).choices[0].message.content ?? "";
}

// Fills a side of a comparison, one prompt after another.
async function askAll(id, side, model) {
  for (const row of comparisons.get(id)) {
    if (row[side] === undefined) {
      byId("compare-state").textContent = `Asking ${model}.`;
      row[side] = await ask(model, row.prompt);
      showComparison();
    }
  }
  byId("compare-state").textContent = "";
}

// Returns the value of a sum such as "38+86=" as text, or undefined for other prompts.
function sumIn(prompt) {
  const match = /^(\d{1,9})\+(\d{1,9})=$/.exec(prompt.trim());
  return match ? String(Number(match[1]) + Number(match[2])) : undefined;
}

// Counts the right responses if all prompts are sums, as those of the quickstart are.
function showRight(rows) {
  const foot = byId("comparison").tFoot;
  foot.hidden = !rows.every((row) => sumIn(row.prompt) !== undefined);
  ["before", "after"].forEach((side, i) => {
    const asked = rows.filter((row) => row[side] !== undefined);
    const right = asked.filter((row) => row[side].trim() === sumIn(row.prompt));
    foot.rows[0].cells[i + 1].textContent = asked.length < rows.length ? ""
        : `${right.length} of ${rows.length}`;
  });
}

function showComparison() {
  const rows = comparisons.get(selected) ?? [];
  const table = byId("comparison");
  const job = jobs.find((one) => one.id === selected);
  const missing = !job || kActive.has(job.status) || job.fine_tuned_model ? "..." : "no result";
  table.hidden = rows.length === 0;
  table.tBodies[0].replaceChildren(...rows.map((row) => make("tr", {},
      make("td", {class: "text"}, row.prompt),
      make("td", {class: "text"}, row.before ?? "..."),
      make("td", {class: "text"}, row.after ?? missing))));
  showRight(rows);
}

function promptsIn(text) {
  const prompts = text.split("\n").filter((line) => line.trim() !== "");
  if (prompts.length === 0 || prompts.length > kMaxPrompts) {
    throw new Error(`Prompts: give 1 to ${kMaxPrompts} lines`);
  }
  return prompts;
}

async function compare() {
  const job = jobs.find((one) => one.id === selected);
  comparisons.set(job.id, promptsIn(byId("prompts").value).map((prompt) => ({prompt})));
  showComparison();
  await askAll(job.id, "before", job.model);
  await answerAfter(job);
}

let answering = false;

// Asks the result of a job that has ended well, once for each prompt.
async function answerAfter(job) {
  const rows = comparisons.get(job?.id) ?? [];
  if (!job?.fine_tuned_model || answering || rows.every((row) => row.after !== undefined)) {
    return;
  }
  answering = true;
  try {
    await askAll(job.id, "after", job.fine_tuned_model);
  } finally {
    answering = false;
  }
}

// -- the selected job -----------------------------------------------------------------------------

async function fetchEvents(id) {
  const known = new Set(events.map((one) => one.id));
  const fresh = [];
  let after = "";
  for (let page = 0; page < kMaxPages; ++page) {
    const list = await getJson(jobPath(id, `/events?limit=${kPageSize}` +
        (after ? `&after=${encodeURIComponent(after)}` : "")));
    const added = list.data.filter((one) => !known.has(one.id));
    fresh.push(...added);
    if (!list.has_more || list.data.length === 0 || added.length < list.data.length) {
      break;
    }
    after = list.data.at(-1).id;
  }
  if (id === selected) {
    events = [...events, ...fresh.reverse()].sort((a, b) => a.created_at - b.created_at);
  }
}

// Returns the numbers that events have besides the step. The first is the reward, or else the loss.
function metricNames(metrics) {
  const names = new Set(metrics.flatMap((one) =>
      Object.entries(one.data).filter(([name, value]) => name !== "step" &&
          typeof value === "number").map(([name]) => name)));
  const rank = (name) => name === "reward_mean" ? 0 : name === "train_loss" ? 1
      : /reward|loss/.test(name) ? 2 : 3;
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

function showCurve() {
  const metrics = events.filter((one) => typeof one.data?.step === "number");
  setOptions(byId("metric"), metricNames(metrics));
  const name = byId("metric").value;
  const points = metrics.filter((one) => Number.isFinite(one.data[name]))
      .map((one) => ({step: one.data.step, value: one.data[name]}))
      .sort((a, b) => a.step - b.step);
  byId("curve").replaceChildren(drawCurve(name, points));
}

function showEvents() {
  byId("events").replaceChildren(...events.slice(-kMaxShownEvents).reverse().map((one) =>
      make("li", {}, `${time(one.created_at)} ${one.level ?? ""} ${one.message ?? ""}`)));
}

function showCheckpoints(list) {
  byId("checkpoints").replaceChildren(...(list.length === 0 ? [make("li", {}, "none yet")] :
      list.map((one) => make("li", {}, `step ${one.step_number}: ` +
          `${one.fine_tuned_model_checkpoint ?? one.id} ` + Object.entries(one.metrics ?? {})
          .filter(([, value]) => typeof value === "number" && Number.isFinite(value))
          .map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`).join(", ")))));
}

function showFacts(job) {
  const facts = [["Status", job.status], ["Base model", job.model],
    ["Method", job.method?.type ?? "supervised"], ["Result", job.fine_tuned_model],
    ["Training file", job.training_file], ["Trained tokens", job.trained_tokens],
    ["Created", time(job.created_at)], ["Ended", time(job.finished_at)],
    ["Error", job.error?.message]];
  byId("detail-title").textContent = job.id;
  byId("facts").replaceChildren(...facts.filter(([, value]) => value !== undefined &&
      value !== null && value !== "").flatMap(([name, value]) =>
      [make("dt", {}, name), make("dd", {}, String(value))]));
  enable("pause", ["queued", "running"].includes(job.status));
  enable("resume", job.status === "paused");
  enable("cancel", kActive.has(job.status));
  enable("compare", Boolean(job.fine_tuned_model));
}

// A button that is disabled loses the focus, which then goes to the job's title.
function enable(id, enabled) {
  const focused = document.activeElement === byId(id);
  byId(id).disabled = !enabled;
  if (focused && !enabled) {
    byId("detail-title").focus({preventScroll: true});
  }
}

async function showSelected() {
  const job = jobs.find((one) => one.id === selected);
  byId("detail").hidden = !job;
  if (!job) {
    return;
  }
  showFacts(job);
  showComparison();
  const [, checkpoints] = await Promise.all(
      [fetchEvents(job.id), getJson(jobPath(job.id, `/checkpoints?limit=${kPageSize}`))]);
  if (job.id === selected) {
    showCheckpoints(checkpoints.data);
    showEvents();
    showCurve();
  }
}

function select(id) {
  if (id !== selected) {
    selected = id;
    events = [];
    if (comparisons.has(id)) {
      byId("prompts").value = comparisons.get(id).map((row) => row.prompt).join("\n");
    }
  }
}

// -- the list of jobs -----------------------------------------------------------------------------

function showList(hasMore) {
  byId("no-jobs").hidden = jobs.length > 0 && !hasMore;
  byId("no-jobs").textContent = jobs.length === 0 ? "There are no jobs yet."
      : `The list has the newest ${jobs.length} jobs.`;
  const focused = document.activeElement?.dataset?.job;
  byId("list").replaceChildren(...jobs.map((job) => {
    const choose = make("button", {type: "button", "data-job": job.id,
      "aria-pressed": String(job.id === selected)},
    `${job.id}: ${job.status}, ${job.method?.type ?? "supervised"} on ${job.model}`);
    choose.addEventListener("click", () => {
      select(job.id);
      refresh();
    });
    return make("li", {}, choose);
  }));
  if (focused) {
    byId("list").querySelector(`[data-job="${CSS.escape(focused)}"]`)?.focus();
  }
}

async function update() {
  const list = await getJson(`${kJobs}?limit=${kPageSize}`);
  jobs = list.data;
  if (selected === null && jobs.length > 0) {
    select(jobs[0].id);
  }
  showList(list.has_more);
  await showSelected();
  await answerAfter(jobs.find((one) => one.id === selected));
}

let again = false;
let updating = false;

// Updates now, or once more if an update is running.
async function refresh() {
  again = true;
  if (updating) {
    return;
  }
  updating = true;
  try {
    while (again) {
      again = false;
      await update();
    }
  } finally {
    updating = false;
  }
}

// -- new jobs -------------------------------------------------------------------------------------

async function showFiles() {
  const files = (await getJson("/v1/files")).data;
  byId("quickstart").hidden = !files.some((file) => file.id === kQuickstartFile);
  const training = files.filter((file) => (file.purpose ?? "fine-tune") === "fine-tune");
  setOptions(byId("training-file"), ["", ...training.map((file) => file.id)],
      ["choose a file", ...training.map((file) => `${file.filename} (${file.id})`)]);
}

async function upload(file) {
  const form = new FormData();
  form.set("purpose", "fine-tune");
  form.set("file", file);
  return (await (await request("/v1/files", {method: "POST", body: form,
    signal: AbortSignal.timeout(600_000)})).json()).id;
}

function methodOf(type) {
  const hyperparameters = {n_epochs: numberIn("epochs"), batch_size: numberIn("batch"),
    learning_rate_multiplier: numberIn("rate")};
  if (type === "supervised") {
    return {type, supervised: {hyperparameters}};
  }
  let grader;
  try {
    grader = JSON.parse(byId("grader").value);
  } catch (error) {
    throw new Error(`Grader: ${error.message}`);
  }
  return {type, reinforcement: {grader, hyperparameters}};
}

async function create() {
  const method = methodOf(byId("method").value);
  const seed = numberIn("job-seed");
  const [file] = byId("upload").files;
  const training_file = file ? await upload(file) : byId("training-file").value;
  if (!training_file) {
    throw new Error("Training file: choose one, or upload one");
  }
  const job = await (await postJson(kJobs, {model: byId("base").value, training_file, method,
    suffix: byId("suffix").value || undefined, seed})).json();
  byId("upload").value = "";
  await showFiles();
  select(job.id);
  await refresh();
  byId("detail-title").focus();
}

// Asks the base model first, so that the page has its responses whatever becomes of the job.
async function tryQuickstart() {
  byId("try").disabled = true;
  try {
    const model = byId("base").value;
    const rows = [];
    for (const prompt of kQuickstartPrompts) {
      rows.push({prompt, before: await ask(model, prompt)});
    }
    const job = await (await postJson(kJobs, {model, training_file: "quickstart"})).json();
    comparisons.set(job.id, rows);
    select(job.id);
    await refresh();
    byId("detail-title").focus();
  } finally {
    byId("try").disabled = false;
  }
}

function act(verb) {
  attempt(async () => {
    await request(jobPath(selected, `/${verb}`), {method: "POST", body: "{}",
      headers: {"Content-Type": "application/json"}});
    await refresh();
  });
}

for (const verb of ["pause", "resume", "cancel"]) {
  byId(verb).addEventListener("click", () => act(verb));
}
byId("try").addEventListener("click", () => attempt(tryQuickstart));
byId("compare").addEventListener("click", () => attempt(compare));
byId("metric").addEventListener("change", showCurve);
byId("method").addEventListener("change", () => {
  byId("grader-row").hidden = byId("method").value !== "reinforcement";
});
byId("create").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(create);
});
byId("grader").value = JSON.stringify(kExampleGrader, null, 2);
byId("prompts").value = kQuickstartPrompts.join("\n");

let polling = null;

start(async () => {
  const models = await listModels();
  const bases = models.filter((one) => !one.parent);
  context = bases[0]?.max_model_len ?? Infinity;
  setOptions(byId("base"), bases.map((one) => one.id));
  try {
    await getJson(`${kJobs}?limit=1`);
  } catch (error) {
    if (error.status !== 404) {
      throw error;
    }
    byId("no-jobs").textContent = "This server runs no fine-tuning jobs.";
    byId("create").hidden = true;
    return;
  }
  await showFiles();
  polling ??= poll(refresh, kPeriodMs);
});
