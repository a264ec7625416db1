"""These need Flower, which `make flower` installs beside the environment of the other tests."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
