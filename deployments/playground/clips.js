import { call, colour, content, fixed, follow, list, show } from "./api.js";

const $ = (id) => document.getElementById(id);

export function startClips() {
  const form = $("clip-form");
  form.tau.addEventListener("input", () => { $("tau-value").textContent = Number(form.tau.value) > 0.6 ? form.tau.value : "any"; });
  let run = 0;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const mine = ++run;
    show($("clip-fault"), null);
    $("clip-facts").replaceChildren(); // what stands there is of the clip before
    try {
      const job = await call("POST", "v1/videos", bodyOf(form));
      $("clip-run").hidden = false;
      $("clip-video").removeAttribute("src");
      $("clip-video").load();
      $("source-figure").hidden = true;
      for await (const now of follow(job.id)) {
        if (mine !== run) return;
        $("clip-progress").value = now.progress;
        $("clip-state").textContent = `${now.status.replace("_", " ")}, ${now.progress} %`;
        await showSource(now.reuse);
        if (now.status === "completed") showResult(now);
      }
    } catch (error) {
      if (mine === run) show($("clip-fault"), error);
    }
  });
}

function bodyOf(form) {
  const tau = Number(form.tau.value);
  const body = { prompt: form.prompt.value, reuse: { mode: form.mode.value, ...(tau > 0.6 ? { tau } : {}) } };
  const numbers = { num_inference_steps: form.steps, seed: form.seed, num_frames: form.frames };
  for (const [name, input] of Object.entries(numbers)) if (input.value) body[name] = Number(input.value);
  return body;
}

async function showSource(reuse) {
  if (!reuse.hit || !$("source-figure").hidden) return;
  $("source-figure").hidden = false;
  $("source-video").src = content(reuse.source_id);
  $("source-caption").textContent = reuse.region_phrase
    ? `Reused; the region of "${reuse.region_phrase}" was denoised on its own`
    : "Reused";
  const canvas = $("source-mask");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  if (reuse.region_phrase) drawMask(canvas, reuse);
}

let drawn = null;

// The mask comes as one picture, frame below frame; it is drawn over the source as that plays.
async function drawMask(canvas, reuse) {
  const response = await fetch(`v1/videos/${reuse.source_id}/mask?phrase=${encodeURIComponent(reuse.region_phrase)}`);
  if (!response.ok) return;
  const frames = Number(response.headers.get("x-mask-frames"));
  const strip = await createImageBitmap(await response.blob());
  const video = $("source-video");
  const side = strip.height / frames;
  const tint = colour("accent");
  function draw(seconds) {
    if (!video.videoWidth) return;
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    const scale = Math.floor(Math.min(canvas.width / strip.width, canvas.height / side));
    const [width, height] = [strip.width * scale, side * scale];
    const frame = Math.min(frames - 1, Math.round((seconds / video.duration) * frames) || 0);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(strip, 0, frame * side, strip.width, side, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = tint;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.globalCompositeOperation = "source-over";
  }
  // The time of the frame that is shown, which the clock of the video runs ahead of.
  function next(_, shown) {
    if ($("source-figure").hidden || strip !== drawn) return;
    draw(shown.mediaTime);
    video.requestVideoFrameCallback(next);
  }
  drawn = strip;
  video.requestVideoFrameCallback(next);
}

function showResult(job) {
  const { reuse } = job;
  $("clip-video").src = content(job.id);
  const perStep = reuse.steps_computed ? reuse.seconds.denoise / reuse.steps_computed : null;
  list($("clip-facts"), [
    ["Reused", reuse.hit ? "yes" : `no: ${(reuse.reason ?? "").replaceAll("_", " ")}`],
    ["Matching score m", fixed(reuse.matching_score, 3)],
    ["K1", reuse.k1], ["K2", reuse.k2],
    ["Steps computed", reuse.steps_computed], ["Steps left out", reuse.steps_skipped],
    ["Tokens computed", reuse.token_share === null ? null : `${fixed(100 * reuse.token_share, 0)} %`],
    ["Changed", reuse.change_kinds.join(", ").replaceAll("_", " ")],
    ["Words", [...reuse.words_removed.map((word) => `- ${word}`), ...reuse.words_added.map((word) => `+ ${word}`)].join(", ")],
    ["Denoising", `${fixed(reuse.seconds.denoise)} s`],
    ["Saved, about", reuse.hit && perStep ? `${fixed(perStep * reuse.steps_skipped)} s` : null],
    ["Seed", reuse.effective.seed],
  ]);
}
