"""What no module of ours may do, whatever comes from the network, the store or the disk: unpickle it, run it, or fetch
what it names.
"""

import ast
import pathlib
from collections.abc import Iterator
from typing import Final

import pytest

ROOT: Final = pathlib.Path(__file__).parents[2]
FORBIDDEN_MODULES: Final = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS: Final = {"torch.load", "np.load", "numpy.load", "yaml.load", "os.system", "eval", "exec", "__import__"}
FORBIDDEN_OPTIONS: Final = {"allow_pickle", "shell", "trust_remote_code"}
CLIENT_MODULES: Final = {"httpx", "requests", "urllib.request", "http.client", "aiohttp", "urllib3"}
MAY_CALL_OUT: Final = {
    "actors/engines/llm_diff.py",  # the operator's own endpoint of a language model
    "deployments/webhooks.py",  # addresses that the operator has set
}
"""No address that a caller sends is ever opened."""
FILES: Final = sorted(
    path for name in ("reprise", "cache_store", "actors", "deployments") for path in (ROOT / name).rglob("*.py")
)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles_runs_or_fetches(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    names = set(imported(tree))
    assert not FORBIDDEN_MODULES & {name.partition(".")[0] for name in names}
    if str(path.relative_to(ROOT)) not in MAY_CALL_OUT:
        assert not CLIENT_MODULES & names
    for call in called(tree):
        assert ast.unparse(call.func) not in FORBIDDEN_CALLS
        for keyword in call.keywords:
            if keyword.arg in FORBIDDEN_OPTIONS:
                assert ast.unparse(keyword.value) == "False", keyword.arg
