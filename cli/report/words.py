"""What a report says in sentences: what was enforced, and what isn't guaranteed."""

import math

from precad.cli.report.facts import ChangedInputs, Guarantee, Report, Robustness, Rule
from precad.common.task import Task


def enforced(task: Task) -> list[Rule]:
    """What the system made sure of, with its numbers."""
    privacy = task.privacy
    limit = privacy.epsilon_limit
    return [
        Rule(
            what="a record's gradient has a norm of at most (R)", value=f"{privacy.record_clip:g}"
        ),
        Rule(what="an owner's update has a norm of at most (C)", value=f"{privacy.client_clip:g}"),
        Rule(
            what="a longer update passes with a probability of at most",
            value=f"2^−{task.projections}",
        ),
        Rule(
            what="noise of each server, over a record's share (σ)",
            value=f"{privacy.noise_multiplier:g}",
        ),
        Rule(
            what="an owner is drawn in a round with probability (q)",
            value=f"{privacy.client_rate:g}",
        ),
        Rule(what="a record is then drawn with at most (p)", value=f"{privacy.record_rate:g}"),
        Rule(
            what="ε at which both servers stop counting an owner",
            value="no limit was set" if limit is None else f"{limit:g}",
        ),
        Rule(what="norms were checked by", value=_CHECKS[task.validation]),
        Rule(
            what="who is drawn could be seen from traffic",
            value="no, everybody uploads" if privacy.cover_uploads else "yes",
        ),
    ]


_CHECKS = {
    "crypten": "Beaver triples and comparisons (holds against a server that follows the protocol)",
    "fss": "function secret sharing (a record's privacy holds against a server that doesn't, too)",
}


def not_guaranteed(task: Task) -> list[str]:
    """Whoever judges a training must not take these for promised (SECURITY.md, "What isn't")."""
    cheating = (
        "A server that departs from the protocol can reject submissions or leave noise out; under "
        "this task's check of norms it could also learn one bit of its choice about an update in "
        "each attempt. Nothing is claimed against it."
        if task.validation == "crypten"
        else "A server that departs from the protocol can still reject whom it likes and leave "
        "its noise out: who is counted, whole owners' privacy and robustness aren't claimed "
        "against it."
    )
    return [
        (
            "Two servers that work together, or a dealer with one of them, see every update. They "
            "must be run by organisations that don't."
        ),
        cheating,
        (
            "The bounds on attackers hold for the expected error of a training like this one, with "
            "both servers and the dealer honest; one run is one draw from it."
        ),
        (
            "What is measured on held-out records carries no guarantee of its own, and says "
            "nothing about other patients, sites or years."
        ),
        (
            "How many records an owner has is what it says; a wrong number costs its own records' "
            "influence, not the others' privacy."
        ),
        (
            "This is one training. What the same records gave in others adds to it; each owner's "
            "own account has the sum (precad ledger mine)."
        ),
        "Whether a model is fair, useful or safe to act on isn't looked at here.",
    ]


def guarantee_sentence(said: Guarantee) -> str:
    """One guarantee for a person without mathematics."""
    whom = "one person's record" if said.protects == "record" else "a whole organisation"
    if said.epsilon is None:
        return f"Against {said.against}, nothing is promised for {whom}."
    numbers = f"ε = {said.epsilon:.3g} at δ = {said.delta:g}"
    if said.found_of_100 >= _EVERYBODY:
        return (
            f"Against {said.against}, {whom} is not protected ({numbers}): an attacker may be able "
            "to tell whether it was used."
        )
    return (
        f"Against {said.against}: with or without {whom}, any result is nearly as likely "
        f"({numbers}). Say an attacker tries to tell whether {whom} was used, and wrongly says yes "
        f"for 5 of 100 that were not: then it rightly says yes for at most "
        f"{math.ceil(said.found_of_100)} of 100 that were."
    )


def summary(report: Report) -> list[str]:
    """What a person wants to know first, a line each."""
    last = report.rounds[-1]
    lines = [f"{report.training.released} of {report.training.rounds} rounds are trained"]
    if last.accuracy is not None:
        lines.append(f"accuracy {last.accuracy:.1%}")
    return lines + [guarantee_sentence(said) for said in report.guarantees]


def robustness_sentence(found: Robustness) -> str:
    """What the bounds mean, and where they stop."""
    who = "bad records" if found.unit == "records" else "bad owners"
    useful = [
        b for b in found.bounds if found.silent_from is None or b.attackers < found.silent_from
    ]
    if not useful:
        one = "a single bad record" if found.unit == "records" else "a single bad owner"
        return (
            f"Against {one} the bound says nothing: with this noise and these clips it could do "
            "anything to the model that a single update of the allowed size can do."
        )
    last = useful[-1]
    end = (
        f" From {found.silent_from} {who} on it says nothing."
        if found.silent_from is not None
        else ""
    )
    return (
        f"Up to {last.attackers} {who}, whatever they contain, leave an expected error of "
        f"{found.error:.1%} between {least(last.lower)} and {most(last.upper)}.{end}"
    )


def inputs_sentence(found: ChangedInputs) -> str:
    """What was certified of changed inputs, and of which model."""
    return (
        f"Where noise of σ = {found.sigma:g} is added to an input and {found.copies:,} noisy "
        "copies vote, the answer stays the same however the input is changed within a radius of "
        f"its own (ℓ2; {found.confidence:.2%} sure for each input). Of {found.points:,} public "
        f"inputs {found.abstained:,} got no answer; the mean radius is "
        f"{found.average_certified_radius:.3f}, wrong answers counted as 0. The model used without "
        "that noise has no radius."
    )


def least(share: float) -> str:
    """A lower bound in per cent: never more than it is."""
    return f"{math.floor(1000 * share) / 10:.1f}%"


def most(share: float) -> str:
    """An upper bound in per cent: never less than it is."""
    return f"{math.ceil(1000 * share) / 10:.1f}%"


_EVERYBODY = 99.5
