"""Nothing that comes from the network, the store or the disk is unpickled: no package of ours can."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[3]
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"torch.load", "np.load", "numpy.load"}
FILES = sorted(
    path for name in ("reprise", "cache_store", "actors", "deployments") for path in (ROOT / name).rglob("*.py")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles(path: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not FORBIDDEN_MODULES & {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in FORBIDDEN_MODULES
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in FORBIDDEN_CALLS
