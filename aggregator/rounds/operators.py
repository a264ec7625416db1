"""What waits for the operators of both servers."""

from precad.aggregator.rounds.journal import Journal, Word
from precad.common.errors import PrecadError
from precad.common.task import Task

OPENED_CAP = 3
"""Attempts of one version whose comparisons may be opened before the operators are asked: in each a
server that departs from the protocol reads a bit of X. By gates it reads none, and they are only
counted (docs/cheating-server.md)."""
GRANTED = 3
"""Attempts that one word of the operators allows."""

_WHY = {
    Word.ATTEMPTS: "go on trying",
    Word.WRITE_OFF: "write off the attempt that the other server has lost (its charge stands)",
    Word.COIN: "take new coins, because a server has lost its coin key",
}


class NeedsOperators(PrecadError):
    """Only the operators of both servers can decide how to go on; it is asked again and again."""

    def __init__(self, word: Word, version: int, what: str) -> None:
        super().__init__(
            f"version {version} waits for the operators of both servers: {what}. To "
            f"{_WHY[word]}, each says to its own server: precad allow {word.value} HOST:PORT "
            f"--server a|b --version {version} --identity FOLDER"
        )
        self.word = word
        self.version = version


def doubt(journal: Journal, task: Task, attempt: int, version: int) -> str:
    """Why another attempt of ``version`` needs the operators' word; empty when it needs none."""
    if attempt <= journal.allowed(Word.ATTEMPTS, version):
        return ""
    if any(not fact.voided for fact in journal.facts(version)):
        return "a release of it may have left already, and another one costs privacy"
    opened = journal.opened(version)
    if opened >= OPENED_CAP and task.validation == "crypten":
        return f"the comparisons of {opened} of its attempts were opened"
    if (tried := journal.attempts_of(version)) >= task.training.attempts:
        return f"{tried} attempts failed (training.attempts = {task.training.attempts})"
    return ""
