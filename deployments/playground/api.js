// The HTTP API as the page uses it; every failure is an Error with the server's own sentence.

// The key is kept as a cookie of this session: a video's address and a WebSocket can carry nothing else.
const COOKIE = "reprise_api_key";
const keyForm = document.getElementById("key-form");

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `${COOKIE}=${encodeURIComponent(keyForm.elements.key.value.trim())}; path=/; samesite=strict${secure}`;
  keyForm.hidden = true;
  keyForm.dispatchEvent(new CustomEvent("key-given"));
});

function storedKey() {
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${COOKIE}=`));
  return found && decodeURIComponent(found.slice(COOKIE.length + 1));
}

export async function call(method, path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const key = storedKey();
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (response.status === 401) keyForm.hidden = false;
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.error?.message ?? `${method} ${path}: ${response.status}`);
  return answer;
}

export const content = (id, variant = "video") => `v1/videos/${id}/content?variant=${variant}`;

// Yields the job whenever it has changed, until it is done; throws when it fails or is deleted.
export async function* follow(id, everyMs = 250) {
  let seen = "";
  for (;;) {
    const job = await call("GET", `v1/videos/${id}`);
    const now = JSON.stringify([job.status, job.progress]);
    if (now !== seen) yield job;
    seen = now;
    if (job.status === "failed") throw new Error(`${job.error.code}: ${job.error.message}`);
    if (job.status === "completed") return;
    await new Promise((done) => setTimeout(done, everyMs));
  }
}

export function show(fault, error) {
  fault.hidden = !error;
  fault.textContent = error ? error.message : "";
}

export function list(target, facts) {
  target.replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => {
    const entry = document.createElement("div");
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    entry.append(term, text);
    return entry;
  }));
}

export const fixed = (value, digits = 2) => (typeof value === "number" ? value.toFixed(digits) : null);

// A canvas sized to its box; gives its context, width and height in CSS pixels.
export function paint(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

export const colour = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};
