"""Make a CUDA build of torchvision importable beside a CPU build of torch; does nothing where it already is.

Where only PyPI is reachable, pip pairs a CPU torch with PyPI's torchvision, whose compiled part needs CUDA
libraries. Its import then fails on two operators that its Python part takes for granted, and takes
transformers and open_clip with it. This writes a lazy import hook into site-packages that defines the two
(non-maximum suppression, which nothing here calls) just before torchvision loads.
"""

import pathlib
import subprocess
import sys
import sysconfig

HOOK = '''"""Written by Reprise's scripts/mend_torchvision.py: lets torchvision import beside a CPU build of torch."""

import sys
from importlib.machinery import PathFinder

_LIBRARY = []


def _nms(boxes, scores, iou_threshold):
    order = scores.argsort(descending=True, stable=True).tolist()
    keep = []
    for i in order:
        x1, y1, x2, y2 = boxes[i].tolist()
        for j in keep:
            a1, b1, a2, b2 = boxes[j].tolist()
            inter = max(0.0, min(x2, a2) - max(x1, a1)) * max(0.0, min(y2, b2) - max(y1, b1))
            if inter > iou_threshold * ((x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - inter):
                break
        else:
            keep.append(i)
    return scores.new_tensor(keep).long()


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            import torch

            if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
                library = torch.library.Library("torchvision", "DEF")
                for name in ("nms", "qnms"):
                    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                library.impl("nms", _nms, "CPU")
                _LIBRARY.append(library)
            load(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
'''


def can_import() -> bool:
    """Try the import in a fresh interpreter, as every worker process will."""
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0


def main() -> int:
    """Add the hook where it is needed."""
    if can_import():
        return 0
    site = pathlib.Path(sysconfig.get_path("purelib"))
    (site / "_reprise_torchvision_hook.py").write_text(HOOK)
    (site / "reprise_torchvision_hook.pth").write_text("import _reprise_torchvision_hook\n")
    if can_import():
        print("torchvision: added an import hook, its compiled part does not match this CPU build of torch")
        return 0
    print("torchvision cannot be imported; install the build that matches torch", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
