"""A long renderer without a model: pieces that tell which they are, and the ways in which a real one can end."""

import dataclasses
from collections.abc import AsyncGenerator

from actors.messages import ChunkDone, LongDone, LongEvent, LongRequest, LongWork

CHUNKS = 3
WORK = LongWork(
    method="flashforward",
    placement="one worker",
    forwards={"planner": 4, "extraction": 1, "renderer": 12},
    rounds=17,
    workers=1,
    wait_s={},
    peak_kv_bytes=1000,
    render_s=3.0,
    first_latents_s=1.0,
    first_frame_s=1.5,
)


@dataclasses.dataclass(slots=True)
class FakeLongRenderer:
    """Implements the LongRenderer protocol."""

    fault: Exception | None = None
    """Raised after `num_before` pieces."""
    num_before: int = 0
    runs: list[LongRequest] = dataclasses.field(default_factory=list)
    num_closed: int = 0

    async def generate(self, request: LongRequest) -> AsyncGenerator[LongEvent, None]:
        """Yield pieces, then the files."""
        self.runs.append(request)
        try:
            for number in range(CHUNKS):
                if self.fault is not None and number == self.num_before:
                    raise self.fault
                done = 3 * (number + 1)
                yield ChunkDone(latents_done=done, num_latents=3 * CHUNKS, fragment=f"piece {number};".encode())
            yield LongDone(
                files={name: name.encode() for name in ("video", "thumbnail", "spritesheet")},
                work=WORK,
                num_tokens=5,
                num_tokens_dropped=2,
                prompt_s=0.1,
                decode_s=0.2,
                encode_s=0.3,
            )
        finally:
            self.num_closed += 1
