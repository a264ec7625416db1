"""Models of Hugging Face's transformers train, from a file of their weights.

They are small and drawn at random: nothing is downloaded.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import save_file
from tests.rig.model_corpus import CLASSES, N, Y
from tests.rig.model_outcomes import outcome, row_on_the_page
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

from precad.cli.main import app
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
TOKENS[:3, 4:] = 0
"""Half of the records are shorter than the others: 0 fills them up."""
PICTURES = GENERATOR.normal(size=(N, 3, 8, 8)).astype(np.float32)


class Padded(nn.Module):
    """The logits of a model that mixes words both ways, with a mask of the padding."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.where(tokens[:, None, None] != 0, 0.0, -1e9)
        square = mask.expand(-1, 1, tokens.shape[1], -1)
        found: torch.Tensor = self.net(tokens, attention_mask=square).logits
        return found


class Flat(Padded):
    """With the mask as most write it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(tokens, attention_mask=(tokens != 0).long()).logits
        return found


class Logits(Padded):
    """Without a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x).logits
        return found


_SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": CLASSES,
}
_TEXT = {"vocab_size": WORDS, "max_position_embeddings": 12, "pad_token_id": 0}
_CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _bert(**more: Any) -> Any:
    config = transformers.BertConfig(**_SIZES | _TEXT | _CALM | more)
    return transformers.BertForSequenceClassification(config)


def _roberta() -> Any:
    config = transformers.RobertaConfig(**_SIZES | _TEXT | _CALM)
    return transformers.RobertaForSequenceClassification(config)


def _distilbert() -> Any:
    sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "num_labels": CLASSES}
    calm = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), 0.0)
    config = transformers.DistilBertConfig(**sizes | _TEXT | calm)
    return transformers.DistilBertForSequenceClassification(config)


def _gpt2(**more: Any) -> Any:
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9, "num_labels": CLASSES}
    calm = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(**sizes | calm | ends | more)
    return transformers.GPT2ForSequenceClassification(config)


def _llama(**more: Any) -> Any:
    config = transformers.LlamaConfig(**_SIZES | _TEXT | more)
    return transformers.LlamaForSequenceClassification(config)


def _vit() -> Any:
    config = transformers.ViTConfig(**_SIZES | _CALM, image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(config)


TRAINED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "BERT of transformers": (lambda: Padded(_bert()), TOKENS),
    "RoBERTa of transformers": (lambda: Padded(_roberta()), TOKENS),
    "DistilBERT of transformers": (lambda: Padded(_distilbert()), TOKENS),
    "GPT-2 of transformers, eager": (lambda: Flat(_gpt2(attn_implementation="eager")), TOKENS),
    "Llama of transformers, eager": (lambda: Flat(_llama(attn_implementation="eager")), TOKENS),
    "ViT of transformers": (lambda: Logits(_vit()), PICTURES),
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "BERT of transformers, mask of two dimensions": (lambda: Flat(_bert()), TOKENS),
    "GPT-2 of transformers, not eager": (lambda: Flat(_gpt2()), TOKENS),
    "BERT of transformers with its dropout": (
        lambda: Padded(_bert(hidden_dropout_prob=0.1)),
        TOKENS,
    ),
}


def weights_of(model: nn.Module, path: Path) -> Path:
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, path)
    return path


def task_from_file(model: nn.Module, folder: Path) -> Task:
    start = weights_of(model, folder / "start.safetensors")
    return task_with({"model": model_section(model, "words", "file", initial_file=start)})


@pytest.mark.parametrize("name", TRAINED)
def test_a_transformer_s_gradients_are_autograd_s_one_by_one(name: str, tmp_path: Path) -> None:
    make, x = TRAINED[name]
    torch.manual_seed(2)
    model = make()
    task = task_from_file(model, tmp_path)
    assert outcome(model, functional.cross_entropy, x, Y, task) == "trains"
    assert row_on_the_page(name) == "trains"
    assert try_model(model, task, x.shape[1:]) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_a_transformer_that_cannot_train_is_named_before_there_are_records(
    name: str, tmp_path: Path
) -> None:
    make, x = REFUSED[name]
    model = make()
    task = task_from_file(model, tmp_path)
    assert outcome(model, functional.cross_entropy, x, Y, task) == row_on_the_page(name)
    with pytest.raises(Misconfiguration):
        try_model(model, task, x.shape[1:])


def words() -> nn.Module:
    """What a task names as its model."""
    torch.manual_seed(7)
    return Padded(_bert())


def test_a_bert_goes_from_task_new_through_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = weights_of(words(), tmp_path / "start.safetensors")
    asked = ["task", "new", "task.toml", "--model", f"{__name__}:words", "--features", "7"]
    asked += [
        "--from",
        start.name,
        "--records",
        "8x50",
        "--epsilon",
        "8",
        "--classes",
        str(CLASSES),
    ]
    made = CliRunner().invoke(app, asked)
    assert made.exit_code == 0, made.output
    task = Task.load(tmp_path / "task.toml")
    x = np.random.default_rng(4).integers(1, WORDS, (400, 7))
    x[:, 5:] = 0
    trained = simulate(task, (x, x[:, 0] % CLASSES), words(), seed=1, rounds=4)
    assert [(each.accepted, each.failed) for each in trained.rounds] == [(8, 0)] * 4
    assert np.abs(trained.theta - initial_vector(task.model)).max() > 0
