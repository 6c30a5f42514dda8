// SPDX-License-Identifier: Apache-2.0
// The page that chats with a model.
import {attempt, byId, clearError, eventsOf, listModels, make, numberIn, postJson, setOptions,
  showError, start} from "/pages/page.js";

const kWide = 832;  // pixels: the settings are beside the conversation
const conversation = [];  // {role, content, tokens, note}, without the system prompt
let running = null;       // the AbortController of the response that is being generated

// -- tokens ---------------------------------------------------------------------------------------

// Joins tokens until their bytes are whole characters. Returns [{text, tokens}].
function wholeCharacters(tokens) {
  const parts = [];
  let bytes = [];
  let joined = [];
  for (const token of tokens) {
    joined.push(token);
    bytes = bytes.concat(token.bytes ?? [...new TextEncoder().encode(token.token)]);
    try {
      const text = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true})
          .decode(new Uint8Array(bytes));
      parts.push({text, tokens: joined});
      bytes = [];
      joined = [];
    } catch {
      // Inside a character.
    }
  }
  return parts;
}

// Returns an element for each part of `content` that tokens make up, or the content alone if they
// do not match it.
function tokenElements(content, tokens) {
  const elements = [];
  let rest = content;
  for (const part of wholeCharacters(tokens)) {
    if (rest === "") {
      break;  // the end mark, or what follows a stop string
    }
    const shown = part.text.slice(0, rest.length);
    if (!rest.startsWith(shown)) {
      return [content];
    }
    if (shown !== "") {
      const span = make("span", {class: "tok"}, shown);
      span.tokens = part.tokens;
      elements.push(span);
    }
    rest = rest.slice(shown.length);
  }
  return rest === "" ? elements : [content];
}

function percent(logprob) {
  return `${(100 * Math.exp(logprob)).toFixed(2)} %`;
}

function showToken(span) {
  const panel = byId("token");
  const rows = span.tokens.flatMap((token) => {
    const row = (one, mark) => make("tr", {}, make("td", {}, mark + JSON.stringify(one.token)),
        make("td", {}, one.logprob.toFixed(3)), make("td", {}, percent(one.logprob)));
    return [row(token, "\u25b8 "), ...(token.top_logprobs ?? [])
        .filter((one) => one.token !== token.token).map((one) => row(one, "  "))];
  });
  panel.replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  panel.hidden = false;
  const box = span.getBoundingClientRect();
  panel.style.left = `${Math.max(4, Math.min(box.left, innerWidth - panel.offsetWidth - 4))}px`;
  const below = box.bottom + 4;
  panel.style.top = `${below + panel.offsetHeight < innerHeight
      ? below : Math.max(4, box.top - panel.offsetHeight - 4)}px`;
}

function hideToken() {
  byId("token").hidden = true;
  document.querySelectorAll(".tok.shown").forEach((one) => one.classList.remove("shown"));
}

// Left and right move between the tokens of a response that has the focus.
function moveToken(event, text) {
  const all = [...text.querySelectorAll(".tok")];
  const now = all.findIndex((one) => one.classList.contains("shown"));
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step || all.length === 0) {
    return;
  }
  event.preventDefault();
  hideToken();
  const next = all[Math.max(0, Math.min(all.length - 1, now + step))];
  next.classList.add("shown");
  showToken(next);
}

// -- messages -------------------------------------------------------------------------------------

async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Pages of plain HTTP from other machines have no clipboard.
  const area = make("textarea", {class: "hidden"});
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) {
    throw new Error("the browser does not permit copying");
  }
}

function button(text, action) {
  const made = make("button", {type: "button"}, text);
  made.addEventListener("click", () => attempt(action));
  return made;
}

function messageElement(message, isLast) {
  const element = make("article", {class: `message ${message.role}`},
      make("h3", {}, message.role === "user" ? "You" : message.model));
  const text = make("p", {});
  if (message.tokens?.length && !message.open) {
    text.append(...tokenElements(message.content, message.tokens));
    text.tabIndex = 0;
    text.setAttribute("aria-description", "Left and right show the tokens' log-probabilities");
    text.addEventListener("mouseover", (event) => {
      event.target.tokens ? showToken(event.target) : hideToken();
    });
    text.addEventListener("mouseleave", hideToken);
    text.addEventListener("blur", hideToken);
    text.addEventListener("keydown", (event) => moveToken(event, text));
  } else {
    text.textContent = message.content;
  }
  element.append(text);
  if (message.note) {
    element.append(make("p", {class: "note"}, message.note));
  }
  if (message.role === "assistant" && !message.open) {
    const row = make("div", {class: "row"}, button("Copy", () => copy(message.content)));
    if (isLast) {
      row.append(button("Regenerate", regenerate));
    }
    element.append(row);
  }
  return element;
}

function render() {
  hideToken();
  byId("log").replaceChildren(...conversation.map(
      (message, i) => messageElement(message, i + 1 === conversation.length)));
}

// -- generation -----------------------------------------------------------------------------------

function requestBody() {
  const system = byId("system").value;
  const body = {
    model: byId("model").value,
    messages: [...(system ? [{role: "system", content: system}] : []),
      ...conversation.map(({role, content}) => ({role, content}))],
    stream: true,
    stream_options: {include_usage: true},
    temperature: numberIn("temperature"),
    top_p: numberIn("top-p"),
    max_tokens: numberIn("max-tokens"),
    seed: numberIn("seed"),
  };
  if (byId("logprobs").checked) {
    body.logprobs = true;
    body.top_logprobs = 5;
  }
  return body;
}

async function receive(body, message, text) {
  const response = await postJson("/v1/chat/completions", body, {signal: running.signal});
  let ended = false;
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") {
      ended = true;
      continue;
    }
    const event = JSON.parse(data);
    if (event.error) {
      throw new Error(event.error.message ?? "the response failed");
    }
    const choice = event.choices?.[0];
    message.content += choice?.delta?.content ?? "";
    message.tokens.push(...(choice?.logprobs?.content ?? []));
    if (choice?.finish_reason) {
      ended = true;
      message.note = choice.finish_reason === "length" ? "ended at the maximum length" : "";
    }
    if (event.usage) {
      message.note = [message.note, `${event.usage.prompt_tokens} + ` +
          `${event.usage.completion_tokens} tokens`].filter(Boolean).join(", ");
    }
    text.textContent = message.content;
  }
  if (!ended) {
    throw new Error("the stream ended before the response did");
  }
}

// Generates the response to the conversation. After an error, the response is not part of it.
async function generate() {
  const body = requestBody();
  running = new AbortController();
  byId("send").disabled = true;
  byId("stop").disabled = false;
  const message = {role: "assistant", content: "", tokens: [], model: body.model, open: true};
  conversation.push(message);
  render();
  try {
    await receive(body, message, byId("log").lastElementChild.querySelector("p"));
  } catch (error) {
    if (error.name === "AbortError") {
      message.note = "stopped";
    } else {
      conversation.pop();
      showError(error);
    }
  }
  message.open = false;
  running = null;
  byId("send").disabled = false;
  byId("stop").disabled = true;
  render();
}

async function regenerate() {
  if (running) {
    return;
  }
  const last = conversation.pop();
  const count = conversation.length;
  try {
    await generate();
  } finally {
    if (conversation.length === count) {  // there is no other response
      conversation.push(last);
      render();
    }
  }
}

async function send() {
  const text = byId("prompt").value;
  if (running || text.trim() === "") {
    return;
  }
  conversation.push({role: "user", content: text});
  const count = conversation.length;
  try {
    byId("prompt").value = "";
    await generate();
  } finally {
    if (conversation.length === count) {  // there is no response
      conversation.pop();
      byId("prompt").value = text;
      render();
    }
    byId("prompt").focus();
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(send);
});
byId("settings").addEventListener("submit", (event) => event.preventDefault());
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    hideToken();
    running?.abort();
  }
});
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  clearError();
  render();
  byId("prompt").focus();
});

byId("sampling").open = innerWidth >= kWide;
start(async () => setOptions(byId("model"), (await listModels()).map((model) => model.id)));
