// Plays an MP4 that grows: pieces are appended to a video element as they come.

export class Player {
  constructor(video) {
    this.video = video;
    this.queue = [];
    this.ended = false;
    this.source = new MediaSource();
    this.buffer = null;
    video.src = URL.createObjectURL(this.source);
    this.source.addEventListener("sourceopen", () => this.step());
  }

  append(bytes) {
    this.queue.push(bytes);
    this.step();
  }

  end() {
    this.ended = true;
    this.step();
  }

  close() {
    this.queue = [];
    this.video.removeAttribute("src");
    this.video.load();
  }

  step() {
    if (this.source.readyState !== "open") return;
    if (!this.buffer) {
      if (!this.queue.length) return;
      this.buffer = this.source.addSourceBuffer(`video/mp4; codecs="${codecOf(this.queue[0])}"`);
      this.buffer.addEventListener("updateend", () => this.step());
    }
    if (this.buffer.updating) return;
    if (this.queue.length) {
      this.buffer.appendBuffer(this.queue.shift());
    } else if (this.ended) {
      this.source.endOfStream();
    }
    this.skipGaps();
  }

  // What was dropped leaves a gap that a video element would wait in for ever.
  skipGaps() {
    const { buffered, currentTime } = this.video;
    for (let i = 0; i < buffered.length; i += 1) {
      if (currentTime >= buffered.start(i) && currentTime < buffered.end(i)) return;
      if (currentTime < buffered.start(i)) {
        this.video.currentTime = buffered.start(i);
        return;
      }
    }
  }
}

// Profile, compatibility and level stand in the header's avcC box.
function codecOf(bytes) {
  const view = new Uint8Array(bytes);
  for (let i = 4; i + 8 < view.length; i += 1) {
    if (view[i] === 0x61 && view[i + 1] === 0x76 && view[i + 2] === 0x63 && view[i + 3] === 0x43) {
      return `avc1.${[view[i + 5], view[i + 6], view[i + 7]].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    }
  }
  throw new Error("the stream's first piece has no header");
}
