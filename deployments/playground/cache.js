import { call, colour, content, fixed, paint, show } from "./api.js";

const $ = (id) => document.getElementById(id);
const WINDOW = 20;
const PAGE = 100;

export function startCache() {
  let jobs = [];
  let cursor = null;

  async function load(after) {
    show($("cache-fault"), null);
    try {
      const page = await call("GET", `v1/videos?limit=${PAGE}${after ? `&after=${after}` : ""}`);
      jobs = after ? [...jobs, ...page.data] : page.data;
      cursor = page.has_more ? page.last_id : null;
      $("cache-more").hidden = cursor === null;
      render();
    } catch (error) {
      show($("cache-fault"), error);
    }
  }

  async function purge(id, entry) {
    try {
      await call("DELETE", `v1/videos/${id}`);
      jobs = jobs.filter((job) => job.id !== id);
      entry.remove();
      render();
    } catch (error) {
      show($("cache-fault"), error);
    }
  }

  function render() {
    const planned = jobs.filter((job) => job.status === "completed" && job.reuse.hit !== null).reverse();
    const sources = jobs.filter((job) => job.status === "completed" && job.reuse.hit === false && job.reuse.reason !== "off");
    const hits = planned.filter((job) => job.reuse.hit).length;
    $("cache-summary").textContent = `${sources.length} sources, ${hits} hits among ${planned.length} requests shown`;
    curve($("hit-curve"), planned.map((_, place) => {
      const last = planned.slice(Math.max(0, place + 1 - WINDOW), place + 1);
      return last.filter((job) => job.reuse.hit).length / last.length;
    }), 1, "accent", (value) => `${Math.round(100 * value)} %`);
    const seconds = planned.map((job) => job.reuse.seconds.denoise ?? 0);
    curve($("latency-curve"), seconds, Math.max(...seconds, 0.001), "soon", (value) => `${value.toFixed(1)} s`);
    $("cache-entries").replaceChildren(...jobs.filter((job) => job.status === "completed").map(entryOf));
  }

  function entryOf(job) {
    const entry = document.createElement("li");
    const picture = document.createElement("img");
    picture.loading = "lazy";
    picture.alt = "";
    picture.src = content(job.id, "thumbnail");
    const prompt = document.createElement("span");
    prompt.textContent = job.prompt;
    const facts = document.createElement("small");
    const { reuse } = job;
    facts.textContent = reuse.hit
      ? `hit, m ${fixed(reuse.matching_score, 3)}, K1 ${reuse.k1}, K2 ${reuse.k2}`
      : `made in full${reuse.reason ? `: ${reuse.reason.replaceAll("_", " ")}` : ""}`;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Purge";
    button.addEventListener("click", () => purge(job.id, entry));
    entry.append(picture, prompt, facts, button);
    return entry;
  }

  $("cache-refresh").addEventListener("click", () => load(null));
  $("cache-more").addEventListener("click", () => load(cursor));
  return () => load(null);
}

function curve(canvas, values, top, name, label) {
  const { context, width, height } = paint(canvas);
  const [left, bottom] = [44, 20];
  const x = (place) => left + (values.length < 2 ? 0.5 : place / (values.length - 1)) * (width - left - 10);
  const y = (value) => 10 + (1 - value / top) * (height - bottom - 10);
  context.font = "12px system-ui";
  context.fillStyle = colour("faint");
  context.strokeStyle = colour("line");
  for (const share of [0, 0.5, 1]) {
    context.fillText(label(share * top), 4, y(share * top) + 4);
    context.beginPath();
    context.moveTo(left, y(share * top));
    context.lineTo(width - 10, y(share * top));
    context.stroke();
  }
  context.fillText(`${values.length} requests`, left, height - 4);
  context.strokeStyle = colour(name);
  context.fillStyle = colour(name);
  context.lineWidth = 2;
  context.beginPath();
  values.forEach((value, place) => context.lineTo(x(place), y(value)));
  context.stroke();
  if (values.length < 40) for (const [place, value] of values.entries()) context.fillRect(x(place) - 2, y(value) - 2, 4, 4);
}
