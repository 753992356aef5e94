"""Parts that run no model load no tensor library: half a gigabyte and eight seconds of each process."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "diffusers", "transformers", "open_clip")


@pytest.mark.parametrize("part", ["api", "router", "retrieval", "live", "store", "diff_extractor"])
def test_a_part_without_a_model_loads_no_tensor_library(part: str) -> None:
    program = (
        f"import json, sys, deployments.replicas.{part}; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout.splitlines()[-1]) == []
