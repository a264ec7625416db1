"""Files that people give: tasks, settings, keys, models, records, votes and runs."""

import io
import json
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from tests.fuzz.stage import CLIENT, D, Seeds, join, split, stage, target
from tests.rig.certified import RUN_INPUTS
from tests.rig.task_files import task_to_toml

from precad.aggregator.collect.upload import Spool
from precad.aggregator.enrol.admission import new_token, token_digest
from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.aggregator.store.summary import read_task
from precad.certify import inefficacy, intervals
from precad.certify.finished_runs import FinishedRun
from precad.cli.certify import certify
from precad.cli.certify_inputs import (
    Trained,
    expectation,
    true_labels,
    vote_intervals,
)
from precad.cli.command_options import Loss, Prediction, UnitName
from precad.cli.local_deployment import to_toml
from precad.cli.number_files import read_array
from precad.client.owner_settings import JoinSettings
from precad.client.records.read_records import read_client_data
from precad.common import identifiers, model
from precad.common.identity import party_certificate as party
from precad.common.identity.authority import make_request, new_key, read_request, to_pem
from precad.common.identity.credentials import REVOCATION_FILE, Identity
from precad.common.identity.deployment_keys import summarise
from precad.common.identity.revocation_list import RevocationList, read_revocation_lists
from precad.common.roster import Roster
from precad.common.submission import Signature
from precad.common.task import Task
from precad.dealer.process import DealerSettings

ROOT = Path(__file__).parents[2]


def _file(
    name: str, parse: Callable[[Path], object], suffix: str, seeds: Seeds
) -> None:
    target(name, seeds)(lambda data: parse(stage().file(data, suffix)))


@target("spooled-body", lambda: [bytes(8 * D + 16)])
def _held(data: bytes) -> None:
    """A spooled body whose file differs by ``data``: as it was, or nothing."""
    body = bytes(range(8 * D))
    file = Spool(stage().folder).begin(CLIENT)
    file.add(memoryview(body))
    kept = file.finish(identifiers.Secret(bytes(32)))
    pairs = zip_longest(kept.path.read_bytes(), data, fillvalue=0)
    kept.path.write_bytes(bytes(one ^ other for one, other in pairs))
    try:
        assert b"".join(kept.pieces()) == body
    finally:
        kept.discard()


_file(
    *("task-toml", Task.load, ".toml"),
    lambda: [
        task_to_toml(stage().task).encode(),
        (ROOT / "deploy" / "task.toml").read_bytes(),
    ],
)
target("task-canonical", lambda: [stage().task.canonical])(read_task)
_file(
    *("roster", lambda path: Roster.load(path, stage().task), ".toml"),
    lambda: [b'[[clients]]\nclient = "ward-3"\nrecords = 120\nrecord_rate = 0.2\n'],
)


def _all_settings() -> list[bytes]:
    folder = stage().folder
    keys = folder / "keys" / "dealer"
    common: dict[str, object] = {
        "task": str(folder / "task.toml"),
        "identity": str(keys),
    }
    server = {**common, "listen": "[::1]:1", "dealer": "b:2", "state": "s"}
    client = {
        "client": "ward-1",
        "server_a": "a:1",
        "server_b": "b:1",
        "data": "x",
        "state": "s",
    }
    values: list[dict[str, object]] = [
        {**server, "server_b": "c:3", "linger": 1.5, "enrolment": "token"},
        {**server, "roster": "r.toml", "database": "sqlite://"},
        {"task": "t", "identity": "keys/dealer", "listen": "127.0.0.1:1"},
        {**common, **client, "epsilon_limit": 1.0, "record_rate": 0.5, "token": "t"},
    ]
    return [bytes([i]) + to_toml(value).encode() for i, value in enumerate(values)]


@target("settings", _all_settings)
def _settings(data: bytes) -> None:
    kinds = (ServerASettings, ServerBSettings, DealerSettings, JoinSettings)
    kind = kinds[data[0] % len(kinds)] if data else DealerSettings
    settings = kind.load(stage().file(data[1:], ".toml"))
    Task.load(settings.task)
    Identity.load(settings.identity)


def _kept(name: str) -> list[bytes]:
    keys = stage().folder / "keys"
    return [(keys / who / name).read_bytes() for who in (CLIENT.name, "server-a")]


@target("certificate", partial(_kept, "cert.pem"))
def _certificate(data: bytes) -> None:
    summarise(stage().file(data, ".pem"))
    found = party.read_certificates(data, source="input")
    authorities = party.read_certificates(stage().identity.ca, source="ca")
    party.has_chain(
        found[0], intermediates=found[1:], authorities=authorities, now=None
    )
    party.validity_fault(found[0])
    party.check_algorithm(found[0].public_key(), source="input")
    party.check_purpose(found[0], party.principal_of(found[0]), source="input")


def _identity(name: str, data: bytes) -> None:
    folder = stage().folder / "keys" / CLIENT.name
    before = (folder / name).read_bytes()
    try:
        (folder / name).write_bytes(data)
        Identity.load(folder)
    finally:
        (folder / name).write_bytes(before)


for _what, _name in (("ca", "ca.pem"), ("key", "key.pem"), ("crl", REVOCATION_FILE)):
    target(f"identity-{_what}", partial(_kept, _name))(partial(_identity, _name))


@target("revocations", partial(_kept, REVOCATION_FILE))
def _revocations(data: bytes) -> None:
    authorities = party.read_certificates(stage().identity.ca, source="ca")
    RevocationList(stage().file(data, ".pem"), authorities)
    read_revocation_lists(data, authorities, source="input")


@target(
    "signing-request",
    lambda: [to_pem(make_request(new_key(), party.Principal.client("ward-1")))],
)
def _request(data: bytes) -> None:
    read_request(data, party.Principal.client("ward-1"), source="input")


def _signatures() -> list[bytes]:
    good = stage().signer.sign(b"signed")
    return [join(good.value, *good.certificates)]


@target("signature", _signatures)
def _signature(data: bytes) -> None:
    value, *certificates = [*split(data), b""]
    signature = Signature(value, tuple(each for each in certificates if each))
    stage().verifier.check(signature, b"signed")
    stage().verifier.admit(signature, CLIENT)


@target("token", lambda: [new_token().encode()])
def _token(data: bytes) -> None:
    token_digest(data.decode(errors="surrogateescape"))


def _models() -> list[bytes]:
    path = stage().folder / "seed.safetensors"
    model.save_model(path, stage().task, 1, np.arange(D, dtype=np.float64))
    w = np.ones(D)
    return [
        path.read_bytes(),
        save({"w": w}),
        save({"w": w.astype(np.float16)}, {"version": "1"}),
    ]


target("model-vector", lambda: [bytes(8 * D)])(lambda data: model.from_bytes(data, D))
_file(
    "model-file",
    lambda path: model.load_model(path, stage().task),
    ".safetensors",
    _models,
)


def _npy(array: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _records() -> list[bytes]:
    x, y = np.ones((3, 2), dtype=np.float32), np.arange(3)
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, x=x, y=y)
    np.savez_compressed(packed, x=x, y=y)
    return [plain.getvalue(), packed.getvalue(), _npy(x)]


_file("client-data", read_client_data, ".npz", _records)
_Request = TypeVar("_Request", Prediction, Loss)


def _asked(kind: type[_Request], *words: object) -> _Request:
    """What a command line asks of `precad certify`."""
    command = certify.commands[kind.__name__.lower()]
    return kind(
        **command.make_context(command.name, [str(word) for word in words]).params
    )


def _arrays() -> list[bytes]:
    votes = np.array([[3, 1], [0, 4], [2, 2]])
    arrays = (
        votes,
        votes % 2,
        np.full((3, 2, 2), 0.5),
        np.arange(3),
        np.full((4, 2), 0.5),
    )
    return [bytes([i]) + _npy(array) for i, array in enumerate(arrays)]


def _tables() -> list[bytes]:
    texts = (
        "a,b\n3,1\n0,4\n",
        "0,1\n1,1\n",
        "0,0,0.5,0.5\n0,1,1,0\n",
        "0\n1\n1\n",
        "0.5\n0.25\n",
    )
    return [bytes([i]) + text.encode() for i, text in enumerate(texts)]


def _certify(suffix: str, data: bytes) -> None:
    path = stage().file(data[1:], suffix)
    given = path, "--confidence", 0.9
    match data[0] % 5 if data else 0:
        case 0:
            vote_intervals(_asked(Prediction, *given), None)
        case 1 | 2 as form:
            forms = "labels" if form == 1 else "scores"
            vote_intervals(_asked(Prediction, *given, "--format", forms), None)
        case 3:
            true_labels(path, 3, None)
            intervals.vote_counts(read_array("votes", path, None, counted=True))
        case _:
            expectation(_asked(Loss, *given), None)


target("certify-npy", _arrays)(partial(_certify, ".npy"))
target("certify-csv", _tables)(partial(_certify, ".csv"))


def _summaries() -> list[bytes]:
    return [json.dumps({"certificate_inputs": RUN_INPUTS}).encode()]


@target("run-summary", _summaries)
def _run(data: bytes) -> None:
    folder = stage().folder / "run"
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_bytes(data)
    units: tuple[UnitName, ...] = get_args(UnitName)
    for unit in units:
        request = _asked(Prediction, "--runs", folder, "--unit", unit)
        Trained.of(request).guarantee("gdp")


@target("run-arrays", lambda: [_npy(np.arange(3)), _npy(np.full(3, 0.5))])
def _run_arrays(data: bytes) -> None:
    folder = stage().folder / "run-arrays"
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_bytes(_summaries()[0])
    for name in ("predictions.npy", "losses.npy"):
        (folder / name).write_bytes(data)
    losses = FinishedRun.read(folder).losses
    if losses is not None and losses.min() >= 0 and losses.max() <= 1:
        inefficacy.expected_loss(
            losses, bound=1.0, confidence=0.9, how=intervals.ScoreBound.HOEFFDING
        )
