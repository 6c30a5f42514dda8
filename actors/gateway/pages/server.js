// SPDX-License-Identifier: Apache-2.0
// The page that shows what the server does, from its metrics.
import {byId, make, poll, request, start} from "/pages/page.js";

const kPeriodMs = 2000;
let before = null;  // the last reading, for rates

const kEscapes = {"\\\\": "\\", "\\n": "\n", '\\"': '"'};

// Parses Prometheus' text format into [{name, labels, value}].
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match) {
      continue;  // a comment
    }
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\[\\n"]/g, (escape) => kEscapes[escape]);
    }
    samples.push({name: match[1], labels, value: Number(match[3].replace("Inf", "Infinity"))});
  }
  return samples;
}

// Returns the sum of all samples of a name, or undefined if there are none.
function total(samples, name) {
  const found = samples.filter((one) => one.name === name);
  return found.length ? found.reduce((sum, one) => sum + one.value, 0) : undefined;
}

// Returns a quantile of a histogram, interpolated within its bucket, or undefined.
export function quantile(samples, name, share) {
  const counts = new Map();
  for (const one of samples.filter((sample) => sample.name === `${name}_bucket`)) {
    const bound = Number(one.labels.le.replace("+Inf", "Infinity"));
    counts.set(bound, (counts.get(bound) ?? 0) + one.value);
  }
  const buckets = [...counts].sort(([a], [b]) => a - b);
  const rank = share * (buckets.at(-1)?.[1] ?? 0);
  if (rank === 0) {
    return undefined;
  }
  let [low, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= rank) {
      return bound === Infinity ? low : low + (bound - low) * (rank - below) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return undefined;
}

function shown(value, form) {
  return value === undefined || Number.isNaN(value) ? "not reported" : form(value);
}

const whole = (value) => Math.round(value).toLocaleString("en");
const asPercent = (value) => `${(100 * value).toFixed(1)} %`;
const asSeconds = (value) => value < 0.1 ? value.toFixed(4) : value.toFixed(2);

function rate(samples, name, seconds) {
  const [now, then] = [total(samples, name), before && total(before.samples, name)];
  return now === undefined || then === undefined || then === null ? undefined
      : Math.max(0, now - then) / seconds;
}

// Returns how much a counter has grown since the last reading. It began at 0 if there is none, or if
// the server has been started again since.
function growth(samples, name) {
  const now = total(samples, name);
  const then = before ? total(before.samples, name) ?? 0 : 0;
  return now < then ? now : now - then;
}

// Each reader of the metrics has its own last reading, so the server has counters of seconds only.
function trainingShare(samples) {
  const trained = growth(samples, "tidemill:train_seconds_total");
  const busy = trained + growth(samples, "tidemill:generation_seconds_total");
  return busy === 0 ? "idle" : shown(trained / busy, asPercent);
}

function showTiles(samples, seconds) {
  const hits = total(samples, "vllm:prefix_cache_hits_total");
  const queries = total(samples, "vllm:prefix_cache_queries_total");
  const tiles = [
    ["Running", shown(total(samples, "vllm:num_requests_running"), whole)],
    ["Waiting", shown(total(samples, "vllm:num_requests_waiting"), whole)],
    ["Cache in use", shown(total(samples, "vllm:kv_cache_usage_perc"), asPercent)],
    ["Prompt tokens from the cache", shown(queries ? hits / queries : undefined, asPercent)],
    ["Generated tokens per second", before
      ? shown(rate(samples, "vllm:generation_tokens_total", seconds), whole) : "..."],
    ["Generated tokens", shown(total(samples, "vllm:generation_tokens_total"), whole)],
    ["Training's share of the time", trainingShare(samples)],
    ["Preemptions", shown(total(samples, "vllm:num_preemptions_total"), whole)],
    ["Refused or failed", whole(total(samples, "tidemill:errors_total") ?? 0)],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

// The goals, and the counters of what came later, of those times that have a goal.
const kLatencies = [
  ["First token", "vllm:time_to_first_token_seconds",
    "tidemill:time_to_first_token_goal_seconds", "tidemill:late_first_tokens_total"],
  ["Between tokens", "vllm:inter_token_latency_seconds",
    "tidemill:inter_token_latency_goal_seconds", "tidemill:late_next_tokens_total"],
  ["Whole response", "vllm:e2e_request_latency_seconds"],
];

function showLatencies(samples) {
  byId("latency").tBodies[0].replaceChildren(...kLatencies.map(([title, name, goal, late]) => {
    const count = total(samples, `${name}_count`);
    const within = goal && count ? 1 - total(samples, late) / count : undefined;
    const values = [shown(count, whole),
      ...[0.5, 0.9, 0.99].map((share) => shown(quantile(samples, name, share), asSeconds)),
      goal ? shown(total(samples, goal), asSeconds) : "none",
      goal ? shown(within, asPercent) : ""];
    return make("tr", {}, make("th", {scope: "row"}, title),
        ...values.map((value) => make("td", {}, value)));
  }));
}

function showTraining(samples) {
  const facts = [
    ["Open jobs", shown(total(samples, "tidemill:jobs_open"), whole)],
    ["Trained tokens", shown(total(samples, "tidemill:train_tokens_total"), whole)],
    ["Seconds given to training",
      shown(total(samples, "tidemill:train_seconds_total"), asSeconds)],
    ["Seconds given to generation",
      shown(total(samples, "tidemill:generation_seconds_total"), asSeconds)],
  ];
  byId("training").replaceChildren(...facts.flatMap(([name, value]) =>
      [make("dt", {}, name), make("dd", {}, value)]));
}

async function update() {
  const samples = parseMetrics(await (await request("/metrics")).text());
  const time = performance.now();
  showTiles(samples, before ? (time - before.time) / 1000 : 1);
  showLatencies(samples);
  showTraining(samples);
  byId("read").textContent = `Read at ${new Date().toLocaleTimeString()}`;
  before = {samples, time};
}

let refresh = null;
start(() => {
  refresh ? refresh() : refresh = poll(update, kPeriodMs);
});
