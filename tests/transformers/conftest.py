"""These need Hugging Face's transformers, which `make transformers` installs beside the rest."""

import os
import sys
from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"]
if find_spec("transformers"):
    collect_ignore_glob = []
    os.environ["HF_HUB_OFFLINE"] = "1"
    # No model here needs it, and where its build isn't torch's it can't be imported.
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
