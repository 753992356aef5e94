import { call } from "./api.js";
import { startClips } from "./clips.js";
import { startLong } from "./long.js";
import { startLive } from "./live.js";
import { startCache } from "./cache.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const opened = new Map([["cache", startCache()]]);
startClips();
startLong();
startLive();

function select(tab) {
  for (const other of tabs) {
    const isOpen = other === tab;
    other.setAttribute("aria-selected", isOpen);
    other.tabIndex = isOpen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !isOpen;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`); // setting the hash would take the focus away
  opened.get(tab.getAttribute("aria-controls"))?.();
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.focus();
    select(next);
  });
}
const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
if (wanted) select(wanted);

let nextLook;

async function watchHealth() {
  clearTimeout(nextLook);
  const health = document.getElementById("health");
  try {
    const [state, models] = await Promise.all([call("GET", "health"), call("GET", "v1/models")]);
    health.textContent = state.ready ? models.data.map((model) => model.id).join(", ") : state.reason;
  } catch (error) {
    health.textContent = document.getElementById("key-form").hidden ? "the server does not answer" : error.message;
  }
  nextLook = setTimeout(watchHealth, 5000);
}
document.getElementById("key-form").addEventListener("key-given", watchHealth);
watchHealth();
