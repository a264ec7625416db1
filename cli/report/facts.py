"""What a report says, as one JSON document; `precad report --schema` prints its schema."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 2


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Training(_Facts):
    """Who trained what."""

    task: str = Field(description="Name of the task.")
    task_digest: str = Field(description="SHA-256 of the task, hex: what everybody agreed to.")
    architecture: str
    parameters: int = Field(description="d: weights of the model.")
    owners: list[str] = Field(description="Whoever was enrolled, by name.")
    records: int | None = Field(description="What the owners said that they hold together.")
    rounds: int = Field(description="T: planned.")
    released: int = Field(description="Rounds whose model was released.")
    attempts: int | None = Field(description="Attempts of all rounds, broken ones included.")
    model_digest: str | None = Field(description="SHA-256 of the newest model, hex.")
    data: str | None = Field(description="The data set, where the run names one.")


class Guarantee(_Facts):
    """One exact statement of differential privacy."""

    protects: Literal["record", "owner"]
    against: str = Field(description="Who looks, in words.")
    epsilon: float | None = Field(description="ε; null where there is no bound.")
    delta: float = Field(description="δ of the statement.")
    added_delta: float | None = Field(
        description="What honest rejection and, where it is meant, broken cryptography add to δ."
    )
    participations: int = Field(description="Rounds that it is composed over.")
    basis: str = Field(description="Where that number comes from, in words.")
    limit: float | None = Field(description="The ε at which both servers stop counting an owner.")
    found_of_100: float = Field(
        description="Of 100 that took part, how many an attacker can name at most who wrongly "
        "names 5 of 100 that didn't; exact."
    )


class Round(_Facts):
    """One released round."""

    round: int = Field(description="From 1.")
    accuracy: float | None = Field(description="On public held-out records, 0 to 1.")
    counted: int = Field(description="Submissions in the sum.")
    rejected: dict[str, int] = Field(description="Submissions that weren't, by reason.")
    epsilon_server: float | None = Field(
        description="Exact ε of a record against one server so far, for whoever took part most; "
        "null where a round wasn't computed."
    )
    epsilon_models: float | None = Field(description="The same against other owners only.")


class Bound(_Facts):
    """What a number of attackers can do to an expected share of wrong answers."""

    attackers: int = Field(description="K.")
    lower: float
    upper: float


class Robustness(_Facts):
    """Bounds for one kind of attacker."""

    unit: Literal["records", "owners"]
    error: float = Field(description="The share of wrong answers that the bounds start from.")
    bounds: list[Bound]
    silent_from: int | None = Field(
        description="The least K of those tried from which the bounds exclude nothing."
    )


class ChangedInputs(_Facts):
    """What was certified of the model where noise is added to inputs when it is used."""

    sigma: float = Field(gt=0, description="Of the noise, in the inputs' units.")
    copies: int = Field(gt=0, description="n: noisy copies that an answer is voted on by.")
    confidence: float = Field(gt=0, lt=1, description="Of each input's certificate.")
    points: int = Field(gt=0, description="Held-out inputs.")
    abstained: int = Field(ge=0, description="Those without an answer that is sure enough.")
    average_certified_radius: float = Field(
        ge=0, description="ℓ2; wrong answers and abstentions count as 0."
    )
    certified_accuracy: dict[str, float] = Field(
        description="The share of inputs that are right and certified, by ℓ2 radius."
    )


class Ledger(_Facts):
    """One server's ledger, recomputed."""

    server: str
    entries: int
    head: str
    findings: list[str] = Field(description="What is wrong with it; empty where it is sound.")


class Rule(_Facts):
    """Something that the system enforced."""

    what: str
    value: str


class Report(_Facts):
    """All of a report."""

    format: int = Field(default=FORMAT, description="Version of this document's form.")
    precad: str = Field(description="The version that wrote it.")
    training: Training
    guarantees: list[Guarantee]
    rounds: list[Round]
    robustness: list[Robustness]
    inputs: ChangedInputs | None = Field(
        description="Of changed inputs; null where the run certified none."
    )
    enforced: list[Rule]
    ledgers: list[Ledger]
    differences: list[str] | None = Field(
        description="What the two ledgers don't hold alike; null where only one was given."
    )
    not_guaranteed: list[str]

    @property
    def rejected(self) -> dict[str, int]:
        """All rejected submissions by reason."""
        total: dict[str, int] = {}
        for each in self.rounds:
            for reason, count in each.rejected.items():
                total[reason] = total.get(reason, 0) + count
        return dict(sorted(total.items()))

    @property
    def counted(self) -> int:
        """All submissions that counted."""
        return sum(each.counted for each in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The newest that was measured."""
        measured = [each.accuracy for each in self.rounds if each.accuracy is not None]
        return measured[-1] if measured else None
