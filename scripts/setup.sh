#!/usr/bin/env bash
# Make the virtual environment with the CPU build of torch and everything the demo and the tests need.
set -euo pipefail
venv="$1"
torch="torch==2.13.0"
vision="torchvision==0.28.0"

[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@" 2> >(grep -v "is ignored: it is neither a file" >&2); }

index=()
if curl --silent --head --fail --max-time 10 "$TORCH_CPU_INDEX/torch/" >/dev/null 2>&1; then
    index=(--index-url "$TORCH_CPU_INDEX")
fi
echo "setup: torch (CPU build)"
pip "${index[@]}" "$torch"
# torch is named again so that no later package may replace it by a CUDA build.
pip "${index[@]}" --no-deps "$torch" "$vision"
echo "setup: Reprise and its tools"
pip "$torch" "$vision" --editable ".[dev]"
"$venv/bin/python" scripts/mend_torchvision.py
echo "setup: done"
