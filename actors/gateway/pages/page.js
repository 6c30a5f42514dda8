// SPDX-License-Identifier: Apache-2.0
// What all pages do: the head with the links between them, requests with the API key, errors, the
// theme, and polls.

const kTimeoutMs = 30_000;
const kKeyName = "tidemill-key";
const kThemeName = "tidemill-theme";

export const byId = (id) => document.getElementById(id);

// Makes an element with text children. Text of models and servers never becomes markup.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// -- the head of the page -------------------------------------------------------------------------

const kPages = [["/chat", "Chat"], ["/jobs", "Jobs"], ["/server", "Server"]];
const here = location.pathname === "/" ? "/chat" : location.pathname;

document.body.prepend(
    make("a", {class: "skip", href: "#main"}, "Skip to the content"),
    make("header", {class: "top"},
         make("strong", {class: "brand"}, "Tidemill"),
         make("nav", {"aria-label": "Pages"}, ...kPages.map(([href, name]) =>
           make("a", {href, ...(href === here ? {"aria-current": "page"} : {})}, name))),
         make("button", {id: "key", type: "button"}, "API key"),
         make("button", {id: "theme", type: "button"})),
    make("p", {id: "error", class: "error", role: "alert", hidden: ""}));

// -- errors ---------------------------------------------------------------------------------------

export function showError(error) {
  const line = byId("error");
  line.textContent = String(error?.message ?? error).replace(/\s+/g, " ").trim();
  line.hidden = false;
}

export function clearError() {
  byId("error").hidden = true;
}

// Runs `work` and shows its error.
export async function attempt(work) {
  try {
    clearError();
    return await work();
  } catch (error) {
    showError(error);
    return undefined;
  }
}

// -- API key --------------------------------------------------------------------------------------

byId("main").before(make(
    "dialog", {id: "key-dialog", "aria-labelledby": "key-title"},
    make("form", {id: "key-form"},
         make("h2", {id: "key-title"}, "API key"),
         make("p", {id: "key-reason"}),
         make("label", {for: "key-input"}, "Key"),
         make("input", {id: "key-input", type: "password", autocomplete: "off",
                        spellcheck: "false"}),
         make("div", {class: "row"},
              make("button", {type: "submit", class: "primary"}, "Use the key"),
              make("button", {type: "button", id: "key-cancel"}, "Cancel")))));

let asking = null;     // requests that fail together ask once
let declined = false;  // the user has cancelled: polls must not ask again

function askForKey(reason) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const input = byId("key-input");
    byId("key-reason").textContent =
        `${reason} The page keeps the key until you close the tab.`;
    input.value = sessionStorage.getItem(kKeyName) ?? "";
    const finish = (key) => {
      asking = null;
      declined = key === null;
      dialog.onclose = null;
      dialog.close();
      resolve(key);
    };
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      key ? sessionStorage.setItem(kKeyName, key) : sessionStorage.removeItem(kKeyName);
      finish(key);
    };
    byId("key-cancel").onclick = () => finish(null);
    dialog.onclose = () => finish(null);  // Escape
    dialog.showModal();
  });
  return asking;
}

// -- requests -------------------------------------------------------------------------------------

async function errorOf(response) {
  const text = await response.text();
  let message = text.slice(0, 300);
  try {
    message = JSON.parse(text).error.message ?? message;
  } catch {
    // Not an error object: the text itself is shown.
  }
  const error = new Error(`${new URL(response.url).pathname}: ${response.status} ${message}`);
  error.status = response.status;
  return error;
}

// Sends a request and returns its response. Asks for a key if the server wants one.
export async function request(path, options = {}) {
  for (;;) {
    const headers = {...options.headers};
    const key = sessionStorage.getItem(kKeyName);
    if (key) {
      headers.Authorization = `Bearer ${key}`;
    }
    let response;
    try {
      response = await fetch(path, {...options, headers,
        signal: options.signal ?? AbortSignal.timeout(kTimeoutMs)});
    } catch (error) {
      if (error.name === "AbortError") {
        throw error;
      }
      throw new Error(`${path}: the server does not respond (${error.message})`);
    }
    if (response.ok) {
      return response;
    }
    const refused = await errorOf(response);
    const entered = sessionStorage.getItem(kKeyName);
    if (response.status !== 401) {
      throw refused;
    }
    // Another request may have asked for the key meanwhile.
    if (entered === key && (declined || !(await askForKey(refused.message)))) {
      throw refused;
    }
  }
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

export function postJson(path, body, options = {}) {
  return request(path, {...options, method: "POST", body: JSON.stringify(body),
    headers: {"Content-Type": "application/json"}});
}

// Yields the data of the events of a response.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) {
      return;
    }
    rest += value;
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      if (data) {
        yield data;
      }
    }
  }
}

// -- fields ---------------------------------------------------------------------------------------

// Returns the number in an input, or undefined if it is empty.
export function numberIn(id) {
  const input = byId(id);
  if (!input.checkValidity()) {
    throw new Error(`${byId(id).labels[0].textContent}: ${input.validationMessage}`);
  }
  return input.value === "" ? undefined : Number(input.value);
}

export function setOptions(select, values, texts = values) {
  const chosen = select.value;
  select.replaceChildren(...values.map((value, i) => make("option", {value}, texts[i])));
  if (values.includes(chosen)) {
    select.value = chosen;
  }
}

// Returns [{id, parent}]; adapters have a parent.
export async function listModels() {
  return (await getJson("/v1/models")).data;
}

// -- polls ----------------------------------------------------------------------------------------

// Calls `work` now and then every `periodMs` after it has ended, but not while the tab is hidden.
// An error is shown, and disappears when the next call succeeds.
export function poll(work, periodMs) {
  let timer = 0;
  let running = false;
  let failed = false;
  const run = async () => {
    clearTimeout(timer);
    if (running || document.hidden) {
      return;
    }
    running = true;
    try {
      await work();
      if (failed) {
        clearError();
      }
      failed = false;
    } catch (error) {
      failed = true;
      showError(error);
    }
    running = false;
    timer = setTimeout(run, periodMs);
  };
  document.addEventListener("visibilitychange", run);
  run();
  return run;
}

// -- theme and key --------------------------------------------------------------------------------

const kThemes = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme;
  }
  byId("theme").textContent = `Theme: ${theme}`;
}

const saved = localStorage.getItem(kThemeName);
let theme = kThemes.includes(saved) ? saved : "system";
setTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = kThemes[(kThemes.indexOf(theme) + 1) % kThemes.length];
  localStorage.setItem(kThemeName, theme);
  setTheme(theme);
});

// Calls `work` now and whenever the user has entered a key by the button.
export function start(work) {
  byId("key").addEventListener("click", async () => {
    if (await askForKey("Servers with keys need one.") !== null) {
      attempt(work);
    }
  });
  attempt(work);
}
