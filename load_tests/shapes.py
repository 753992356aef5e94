"""How many users there are at a time: constant (soak), rising (ramp), or a multitude in the middle (spike).

Given to Locust as a second file, `-f load_tests/locustfile.py,load_tests/shapes.py --shape spike --shape-s 600`; then
`--users` is the most there are, and `--run-time` has no part.
"""

from typing import Any

from locust import LoadTestShape, events

from load_tests.crowd import SHAPES, users_at


class Shape(LoadTestShape):  # type: ignore[misc]  # locust ships no types that mypy can follow
    """Follows `users_at` for `--shape-s` seconds."""

    def tick(self) -> tuple[int, float] | None:
        """Give users and how many may come a second; None ends the run."""
        options: Any = self.runner.environment.parsed_options
        share = self.get_run_time() / options.shape_s
        if share >= 1:
            return None
        users = users_at(options.shape, share, options.users)
        return users, float(users)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: Any) -> None:
    """Add the options of the shape."""
    parser.add_argument("--shape", choices=SHAPES, default="soak")
    parser.add_argument("--shape-s", type=float, default=600.0)
