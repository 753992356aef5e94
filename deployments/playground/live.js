import { colour, paint, show } from "./api.js";
import { Player } from "./player.js";

const $ = (id) => document.getElementById(id);
const SHOWN_S = 20;

export function startLive() {
  const form = $("live-form");
  let stream = null;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show($("live-fault"), null);
    if (stream?.isOpen) stream.change(form.prompt.value);
    else stream = new Stream(form);
  });
  $("live-stop").addEventListener("click", () => stream?.stop());
}

class Stream {
  constructor(form) {
    this.sequence = 0;
    this.prompts = new Map([[0, form.prompt.value]]);
    this.replaced = [];
    this.committed = this.predicted = 0;
    this.token = null;
    this.isDone = false;
    this.options = { commitment: form.commitment.value, record: form.record.checked };
    $("live-run").hidden = false;
    $("live-changes").tBodies[0].replaceChildren();
    this.player = new Player($("live-video"));
    this.connect({ type: "start", prompt: form.prompt.value, ...this.options });
    this.draw();
  }

  get isOpen() { return !this.isDone; }

  connect(start) {
    this.socket = new WebSocket(new URL("v1/streams", document.baseURI).href.replace(/^http/, "ws"));
    this.socket.binaryType = "arraybuffer";
    this.socket.addEventListener("open", () => this.send(start));
    this.socket.addEventListener("message", (event) => this.take(event.data));
    this.socket.addEventListener("close", () => this.lost());
    $("live-send").textContent = "Change";
    $("live-stop").disabled = false;
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  change(prompt) {
    this.sequence += 1;
    this.prompts.set(this.sequence, prompt);
    this.send({ type: "prompt", prompt, sequence: this.sequence });
  }

  stop() { this.send({ type: "stop" }); }

  take(data) {
    if (typeof data !== "string") {
      this.player.append(data);
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "started":
        this.token = message.token;
        this.facts = message;
        this.state();
        break;
      case "acknowledged": this.row(message.sequence, message.frame, message.is_estimate ? "expected" : "at work"); break;
      case "applied": this.row(message.sequence, message.frame, `${Math.round(message.latency_ms)} ms`); break;
      case "superseded": this.row(message.sequence, null, `superseded by ${message.by}`); break;
      case "replaced": this.replaced.push([message.from, message.to]); break;
      case "commit":
        this.committed = message.frame + message.frames;
        this.predicted = message.predicted_to;
        break;
      case "realtime": this.facts.realtime = message.realtime; this.state(); break;
      case "error": show($("live-fault"), new Error(message.error.message)); break;
      case "done":
        this.isDone = true;
        this.player.end();
        $("live-state").textContent = `ended: ${message.reason}, ${message.frames} frames`;
        break;
    }
  }

  // A connection that breaks is taken up again: the stream goes on without its viewer for a while.
  lost() {
    if (!this.isDone && this.token && !this.retried) {
      this.retried = true;
      this.player.close();
      this.player = new Player($("live-video"));
      this.connect({ type: "start", token: this.token });
      return;
    }
    this.isDone = true;
    $("live-send").textContent = "Start";
    $("live-stop").disabled = true;
  }

  state() {
    const { fps, realtime, sustainable_fps: sustainable } = this.facts;
    $("live-state").textContent = `${fps} frames a second${realtime ? "" : `; this machine makes only ${sustainable}`}`;
  }

  row(sequence, frame, text) {
    let row = document.getElementById(`change-${sequence}`);
    if (!row) {
      row = $("live-changes").tBodies[0].insertRow(0);
      row.id = `change-${sequence}`;
      for (let i = 0; i < 3; i += 1) row.insertCell();
      row.cells[0].textContent = this.prompts.get(sequence) ?? "";
    }
    if (frame !== null) row.cells[1].textContent = frame;
    row.cells[2].textContent = text;
  }

  draw() {
    const { context, width, height } = paint($("timeline"));
    const fps = this.facts?.fps ?? 8;
    const last = Math.max(this.predicted, this.committed, SHOWN_S * fps * 0.6);
    const first = Math.max(0, last - SHOWN_S * fps);
    const x = (frame) => ((frame - first) / (SHOWN_S * fps)) * width;
    const bar = (from, to, name, top, share) => {
      context.fillStyle = colour(name);
      context.fillRect(x(from), top * height, Math.max(0, x(to) - x(from)), share * height);
    };
    bar(Math.max(0, first), this.committed, "accent", 0.1, 0.5);
    bar(this.committed, this.predicted, "soon", 0.1, 0.5);
    for (const [from, to] of this.replaced) if (to > first) bar(Math.max(from, first), to + 1, "warn", 0.68, 0.22);
    const played = $("live-video").currentTime * fps;
    context.fillStyle = colour("ink");
    context.fillRect(x(played), 0, 2, height);
    if (!this.isDone) setTimeout(() => this.draw(), 100);
  }
}
