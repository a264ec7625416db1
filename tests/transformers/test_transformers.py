"""Models of Hugging Face's transformers train, from a file of their weights.

They are small and drawn at random: nothing is downloaded.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.rig import commands, tasks
from tests.rig.documents import Arguments
from tests.rig.model_corpus import CLASSES, N, Y, outcome, row_on_the_page
from torch import nn
from torch.nn import functional

from precad.client import model_section
from precad.client.gradients.rehearsal import try_model
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.common.task import Task
from precad.simulation import simulate

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
WORDS = 11
GENERATOR = np.random.default_rng(31)
TOKENS = GENERATOR.integers(1, WORDS, (N, 7))
TOKENS[:3, 4:] = 0  # Half of the records are shorter than the others: 0 fills them up
PICTURES = GENERATOR.normal(size=(N, 3, 8, 8)).astype(np.float32)


def padded(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """A mask of the padding for a model that mixes words both ways."""
    mask = torch.where(tokens[:, None, None] != 0, 0.0, -1e9)
    return {"attention_mask": mask.expand(-1, 1, tokens.shape[1], -1)}


def flat(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mask as most write it."""
    return {"attention_mask": (tokens != 0).long()}


Mask = Callable[[torch.Tensor], dict[str, torch.Tensor]]


class Logits(nn.Module):
    """Of a model with a mask, or without one."""

    def __init__(
        self,
        net: nn.Module,
        mask: Mask = lambda _: {},
    ) -> None:
        super().__init__()
        self.net, self.mask = net, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x, **self.mask(x)).logits
        return found


SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 12}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 12, "pad_token_id": 0}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILLED: Arguments = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
DISTILLED |= dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), 0.0)
GPT2: Arguments = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9}
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
GPT2 |= {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
EAGER = {"attn_implementation": "eager"}


BERT: Arguments = {**SIZES, **TEXT, **CALM}
Made = tuple[str, Arguments, *tuple[Mask, ...]]


def made(kind: str, config: Arguments, *mask: Mask) -> nn.Module:
    of = "Image" if kind == "ViT" else "Sequence"
    model = getattr(transformers, f"{kind}For{of}Classification")
    settings = getattr(transformers, f"{kind}Config")(**config, num_labels=CLASSES)
    return Logits(model(settings), *mask)


TRAINED: dict[str, Made] = {
    "BERT of transformers": ("Bert", BERT, padded),
    "RoBERTa of transformers": ("Roberta", BERT, padded),
    "DistilBERT of transformers": ("DistilBert", TEXT | DISTILLED, padded),
    "GPT-2 of transformers, eager": ("GPT2", GPT2 | EAGER, flat),
    "Llama of transformers, eager": ("Llama", SIZES | TEXT | EAGER, flat),
    "ViT of transformers": ("ViT", SIZES | CALM | {"image_size": 8, "patch_size": 4}),
}
REFUSED: dict[str, Made] = {
    "BERT of transformers, mask of two dimensions": ("Bert", BERT, flat),
    "GPT-2 of transformers, not eager": ("GPT2", GPT2, flat),
    "BERT of transformers with its dropout": (
        "Bert",
        BERT | {"hidden_dropout_prob": 0.1},
        padded,
    ),
}


def weights_of(model: nn.Module, path: Path) -> Path:
    save_file(
        {name: tensor.clone() for name, tensor in model.state_dict().items()}, path
    )
    return path


@pytest.mark.parametrize("name", [*TRAINED, *REFUSED])
def test_a_transformer_s_gradients_are_autograd_s_one_by_one_or_it_is_refused_without_records(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    model = made(*(TRAINED | REFUSED)[name])
    x = PICTURES if name.startswith("ViT") else TOKENS
    start = weights_of(model, tmp_path / "start.safetensors")
    task = tasks.task_with(
        {
            "model": model_section(
                model, architecture="words", initial="file", initial_file=start
            )
        }
    )
    found = outcome(model, functional.cross_entropy, x, Y, task)
    assert (found, found == "trains") == (row_on_the_page(name), name in TRAINED)
    if name in TRAINED:
        assert try_model(model, task, x.shape[1:]) is not None
    else:
        with pytest.raises(Misconfiguration):
            try_model(model, task, x.shape[1:])


def words() -> nn.Module:
    """What a task names as its model."""
    torch.manual_seed(7)
    return made("Bert", BERT, padded)


def test_a_bert_trains_from_task_new_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = weights_of(words(), tmp_path / "start.safetensors")
    model = ("--model", f"{__name__}:words", "--features", 7, "--classes", CLASSES)
    sizes = ("--from", start.name, "--records", "8x50", "--epsilon", 8)
    commands.said("task", "new", "task.toml", *model, *sizes)
    task = Task.load(tmp_path / "task.toml")
    x = np.random.default_rng(4).integers(1, WORDS, (400, 7))
    x[:, 5:] = 0
    trained = simulate(task, (x, x[:, 0] % CLASSES), words(), seed=1, rounds=4)
    assert [(each.accepted, each.failed) for each in trained.rounds] == [(8, 0)] * 4
    assert np.abs(trained.theta - initial_vector(task.model)).max() > 0
