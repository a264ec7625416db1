"""What becomes of torchvision's and transformers' nets before enrolment.

Writes results/nets.json beside itself, a line a net, and goes on where it ended. A net
is tried as it comes, and where that is refused with what its page's remedies say: group
norm for batch norm, and no dropout. torchvision's classifiers get pictures of 64 x 64;
transformers' classifiers of sequences are small and drawn at random, with a mask of two
dimensions, of four, or none. Without transformers on the path there are torchvision's
alone, and the result says so.

PYTHONPATH=src:.:build/transformers python -m benchmarks.nets --most-parameters 30000000
"""

import argparse
import copy
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # as `make bench` runs each script

import precad  # noqa: E402, F401, I001 -- before gRPC, which reads its ciphers once
import torch  # noqa: E402
from tests.rig.tasks import task_of  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks.rounds.hardware import hardware  # noqa: E402
from precad.client.gradients.rehearsal import try_model  # noqa: E402
from precad.client.gradients.torch_models import load_initial  # noqa: E402
from precad.common.errors import Misconfiguration  # noqa: E402
from research.datasets.cifar10 import torchvision_datasets  # noqa: E402

RESULT = Path(__file__).parent / "results" / "nets.json"
CLASSES, WORDS, STEPS = 3, 11, 7
RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"}
Maker = Callable[[], nn.Module]


def mended(net: nn.Module) -> nn.Module:
    """Group norm for batch norm, nothing in place, and no randomness."""
    net = copy.deepcopy(net)
    for layer in list(net.modules()):
        for name, part in layer.named_children():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
                setattr(layer, name, nn.GroupNorm(1, part.num_features))
            elif type(part).__name__ == "StochasticDepth":
                setattr(layer, name, nn.Identity())
            elif type(part).__name__ in RANDOM:
                part.p = 0.0  # type: ignore[assignment]
            elif getattr(part, "inplace", False):
                part.inplace = False  # type: ignore[assignment]
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
        if isinstance(getattr(layer, "attention_dropout", None), float):
            layer.attention_dropout = 0.0  # type: ignore[assignment]
    return net


class First(nn.Module):
    """A net's logits, whatever else it gives; with a mask of so many dimensions."""

    def __init__(self, net: nn.Module, mask: int = 0) -> None:
        super().__init__()
        self.net, self.mask = net, mask

    def forward(self, x: torch.Tensor) -> Any:
        """The logits."""
        given = {}
        if self.mask == 2:
            given["attention_mask"] = (x >= 0).long()
        elif self.mask:
            mask = torch.where(x[:, None, None] >= 0, 0.0, -1e9)
            given["attention_mask"] = mask.expand(-1, 1, x.shape[1], -1)
        found = self.net(x, **given)
        return found if isinstance(found, torch.Tensor) else found.logits


def of_torchvision() -> Iterator[tuple[str, list[Maker], tuple[int, ...]]]:
    """Name, ways to make it, and a record's shape."""
    torchvision_datasets()
    models = importlib.import_module("torchvision.models")
    for name in models.list_models(module=models):
        options: dict[str, Any] = {"num_classes": CLASSES}
        size = 64
        if name.startswith("vit"):
            size = 224
        if name == "maxvit_t":
            options["input_size"] = (64, 64)
        if name in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": False}
            size = 96
        make = partial(getattr(models, name), weights=None, **options)
        yield f"torchvision {name}", [make, lambda m=make: mended(m())], (3, size, size)


def of_transformers() -> Iterator[tuple[str, list[Maker], tuple[int, ...]]]:
    """As above, of each kind that classifies sequences."""
    import transformers  # noqa: PLC0415
    from transformers.models.auto import modeling_auto  # noqa: PLC0415

    sizes = dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), 8
    )
    sizes |= dict.fromkeys(
        ("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2
    )
    sizes |= dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 2)
    sizes |= dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), 12)
    sizes |= {"num_key_value_heads": 2, "vocab_size": WORDS}
    sizes |= {"max_position_embeddings": 16, "pad_token_id": 0, "num_labels": CLASSES}
    calm = (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout",
        "attention_dropout",
    )
    calm += (
        "seq_classif_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "classifier_dropout",
    )
    transformers.logging.set_verbosity_error()
    kinds = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

    def made(kind: str, mask: int) -> nn.Module:
        model = getattr(transformers, kind)
        settings = model.config_class(
            **sizes, **dict.fromkeys(calm, 0.0), attn_implementation="eager"
        )
        return First(mended(model(settings)), mask)

    for kind in kinds.values():
        ways = [partial(made, kind, mask) for mask in (2, 4, 0)]
        yield f"transformers {kind}", ways, (STEPS,)


def became(ways: list[Maker], shape: tuple[int, ...], most: int) -> dict[str, Any]:
    """Taken as it comes or mended, or the last refusal."""
    said: list[str] = []
    for turn, make in enumerate(ways):
        try:
            torch.manual_seed(1)
            with torch.device("meta"):  # no memory
                count = sum(each.numel() for each in make().parameters())
            if count > most:
                return {"parameters": count, "became": "too large to be tried here"}
            net = make()
            task = task_of(net, "uniform")
            if try_model(load_initial(net, task), task, shape) is None:
                raise Misconfiguration("model", "", "takes no record of this shape")
        except Misconfiguration as error:
            said.append(str(error))
        except Exception as error:  # noqa: BLE001 -- whatever a net's making raises
            said.append(f"can't be made so: {type(error).__name__}: {error}"[:200])
        else:
            return {"parameters": count, "became": "taken", "way": turn, "before": said}
    return {"became": "refused", "said": said}


def main() -> None:
    """Try what is missing, and write after each net."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most-parameters", type=int, default=6_000_000)
    parser.add_argument("--nets", type=int, default=1_000)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if RESULT.exists():
        found = json.loads(RESULT.read_text(encoding="utf-8"))["nets"]
    has_transformers = importlib.util.find_spec("transformers") is not None
    sources = [*of_torchvision(), *(of_transformers() if has_transformers else ())]
    for name, ways, shape in sources[: given.nets]:
        large = "too large" in found.get(name, {}).get("became", "too large")
        if (
            not large
            or found.get(name, {}).get("parameters", 0) > given.most_parameters
        ):
            continue
        found[name] = became(ways, shape, given.most_parameters)
        print(name, found[name], flush=True)
        every = [each["became"] for each in found.values()]
        written = {
            "what": "nets.py",
            "hardware": hardware(),
            "transformers": has_transformers,
            "counts": {kind: every.count(kind) for kind in sorted(set(every))},
            "nets": found,
        }
        RESULT.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
