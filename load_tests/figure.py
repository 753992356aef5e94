"""Draw how hit rate and job time evolve over a load test, with what the paper says of its own (Chorus, figure 9)."""

import pathlib
from collections.abc import Sequence

from load_tests.hit_rate import Window


def draw(windows: Sequence[Window], path: pathlib.Path, *, title: str, with_paper: bool) -> None:
    """Write a PNG, for a trace of one theme beside the paper's; raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8.0, 6.0), layout="constrained")
    rates, times = canvas.subplots(2, sharex=True)
    ends = [window.last for window in windows]
    percent = [float("nan") if window.hit_rate is None else 100 * window.hit_rate for window in windows]
    rates.plot(ends, percent, color="tab:blue", marker=".", label="this run")
    if with_paper:
        label = "paper: under 20 %, about 50 %"
        rates.hlines([20, 50], [0, 1500], [200, 2000], color="black", linestyle=":", label=label)
    rates.set(ylabel="hit rate per 100 requests (%)", ylim=(0, 101), title=title)
    rates.legend(loc="lower right", fontsize="small")
    for name in ("median_job_s", "median_denoise_s"):
        values = [getattr(window, name) for window in windows]
        times.plot(ends, [float("nan") if value is None else value for value in values], marker=".", label=name)
    times.set(xlabel="requests sent", ylabel="seconds", ylim=(0, None))
    times.legend(loc="lower right", fontsize="small")
    for axes in (rates, times):
        axes.grid(alpha=0.3)
    canvas.savefig(path, dpi=130)
