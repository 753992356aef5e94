"""One module per table or figure, each `python -m benchmarks.<name>`; ratios are measured side by side in one run."""
