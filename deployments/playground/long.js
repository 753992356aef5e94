import { call, colour, fixed, follow, list, paint, show } from "./api.js";
import { Player } from "./player.js";

const $ = (id) => document.getElementById(id);
const CHUNK_LATENTS = 3;

export function startLong() {
  const form = $("long-form");
  const tell = () => { $("long-frames-value").textContent = form.frames.value; };
  form.frames.addEventListener("input", tell);
  tell();
  let player = null;
  let run = 0;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const mine = ++run;
    show($("long-fault"), null);
    $("long-facts").replaceChildren();
    try {
      const body = { prompt: form.prompt.value, num_frames: Number(form.frames.value) };
      if (form.seed.value) body.seed = Number(form.seed.value);
      const job = await call("POST", "v1/videos", body);
      $("long-run").hidden = false;
      player?.close();
      player = new Player($("long-video"));
      play(job.id, player).catch((error) => { if (mine === run) show($("long-fault"), error); });
      const latents = (body.num_frames - 1) / 4 + 1;
      for await (const now of follow(job.id)) {
        if (mine !== run) return;
        $("long-state").textContent = `${now.status.replace("_", " ")}, ${now.progress} %`;
        draw(Math.ceil(latents / CHUNK_LATENTS), now.reuse.effective.num_inference_steps, now.progress / 100);
        if (now.status === "completed") facts(now.reuse);
      }
    } catch (error) {
      if (mine === run) show($("long-fault"), error);
    }
  });
}

async function play(id, player) {
  const response = await fetch(`v1/videos/${id}/stream`);
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    player.append(value);
  }
  player.end();
}

// Chunk c is at stage s in round c + s, so what is done behind the last finished chunk lies on a diagonal.
function draw(chunks, stages, progress) {
  const { context, width, height } = paint($("wavefront"));
  const finished = Math.floor(progress * chunks + 1e-9);
  const [done, busy, open] = [colour("accent"), colour("soon"), colour("line")];
  for (let chunk = 0; chunk < chunks; chunk += 1) {
    for (let stage = 0; stage < stages; stage += 1) {
      const ahead = chunk - finished;
      context.fillStyle = chunk < finished || stage < stages - 1 - ahead ? done : progress > 0 && stage === stages - 1 - ahead ? busy : open;
      context.fillRect((chunk * width) / chunks + 0.5, (stage * height) / stages + 0.5, width / chunks - 1, height / stages - 1);
    }
  }
}

function facts(reuse) {
  const { schedule } = reuse;
  if (!schedule) return;
  list($("long-facts"), [
    ["Method", schedule.method], ["Placement", schedule.placement], ["Workers", schedule.workers], ["Rounds", schedule.rounds],
    ...Object.entries(schedule.forwards).map(([role, count]) => [`Forwards, ${role.replaceAll("_", " ")}`, count]),
    ["First frame", `${fixed(reuse.seconds.first_frame)} s`], ["Rendering", `${fixed(schedule.render_s)} s`],
    ["KV held at most", `${fixed(schedule.peak_kv_bytes / 2 ** 20, 1)} MiB`],
  ]);
}
