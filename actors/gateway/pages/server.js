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
    ["Training's share of the time",
      shown(total(samples, "tidemill:training_time_share"), asPercent)],
    ["Trained tokens", shown(total(samples, "tidemill:train_tokens_total"), whole)],
    ["Preemptions", shown(total(samples, "vllm:num_preemptions_total"), whole)],
    ["Refused or failed", whole(total(samples, "tidemill:errors_total") ?? 0)],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const kLatencies = [
  ["First token", "vllm:time_to_first_token_seconds"],
  ["Between tokens", "vllm:inter_token_latency_seconds"],
  ["Whole response", "vllm:e2e_request_latency_seconds"],
];

function showLatencies(samples) {
  byId("latency").tBodies[0].replaceChildren(...kLatencies.map(([title, name]) =>
      make("tr", {}, make("th", {scope: "row"}, title),
          make("td", {}, shown(total(samples, `${name}_count`), whole)),
          ...[0.5, 0.9, 0.99].map((share) =>
              make("td", {}, shown(quantile(samples, name, share), asSeconds))))));
}

function showJobs(samples) {
  const jobs = samples.filter((one) => one.name.startsWith("tidemill:job_"));
  byId("no-training").hidden = jobs.length > 0;
  byId("training").hidden = jobs.length === 0;
  byId("training").tBodies[0].replaceChildren(...jobs.map((one) =>
      make("tr", {}, make("td", {}, one.name.slice("tidemill:job_".length)),
          make("td", {}, one.labels.job ?? one.labels.job_id ?? ""),
          make("td", {}, String(one.value)))));
}

async function update() {
  const samples = parseMetrics(await (await request("/metrics")).text());
  const time = performance.now();
  showTiles(samples, before ? (time - before.time) / 1000 : 1);
  showLatencies(samples);
  showJobs(samples);
  byId("read").textContent = `Read at ${new Date().toLocaleTimeString()}`;
  before = {samples, time};
}

let refresh = null;
start(() => {
  refresh ? refresh() : refresh = poll(update, kPeriodMs);
});
