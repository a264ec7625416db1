"""`precad simulate`: a training in one process, and its results."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import click

from precad.cli import (
    ARGUMENT,
    AsJson,
    command,
    print_json,
    refuse_given,
    require_writable,
    warn_of_clip,
)
from precad.client.owner_settings import model_asked_about, own_model, own_object
from precad.common import (
    Bar,
    Misconfiguration,
    Task,
    frozen_kw_only_dataclass,
    json_of,
    say,
)
from precad.common.terminal import warn

if TYPE_CHECKING:
    from precad.cli import Setting, Values
    from precad.simulation import SimulatedRound, SimulatedTraining
    from precad.simulation.datasets import DataSet
    from precad.simulation.rounds import Attack
    from precad.simulation.search import Trial

PLAIN_EVERY = 10
"""Where nothing is redrawn the first round, the last, and one in so many get a line."""
_ONE_OR_MORE = click.IntRange(min=1)


@frozen_kw_only_dataclass
class SimulationRequest:
    """What `precad simulate` is asked."""

    task: Annotated[Path, "The task file.", ARGUMENT]
    dataset: Annotated[
        str | None, "digits (default) or breast-cancer, which scikit-learn brings."
    ]
    data: Annotated[
        tuple[Path, ...],
        "An owner's file (.csv, .parquet, .npz): one is dealt to --clients, several are"
        " an owner's each. Not with --dataset.",
    ]
    held_out: Annotated[
        Path | None, "A file of records that aren't trained on, to try models on."
    ]
    public: Annotated[
        bool, "The records of --data are public or synthetic: no cost to anybody."
    ]
    tries: Annotated[
        tuple[str, ...],
        "Compare settings, like learning_rate=.25,.5,1; again for another field: all"
        " pairs.",
        "--try",
    ]
    seeds: Annotated[
        int | None,
        "With --try: how often each setting is trained; 5 unless given.",
        _ONE_OR_MORE,
    ]
    measure: Annotated[
        str | None,
        "With --try: what settings are compared by, like AUC or r2. Unless given"
        " accuracy; where the task weighs classes AUC, or balanced accuracy of more than"
        " two; R² of numbers.",
    ]
    write: Annotated[
        Path | None, "With --try: write the task with the best setting to this file."
    ]
    clients: Annotated[
        int | None, "n: how many owners the records are dealt to.", _ONE_OR_MORE
    ]
    rounds: Annotated[int | None, "T; the task's unless given.", _ONE_OR_MORE]
    model: Annotated[
        str | None, "Your model, MODULE:NAME, where the task's isn't built in."
    ]
    evaluated_model: Annotated[Path | None, "The model that a question asks about."]
    evaluated_task: Annotated[Path | None, "Its task."]
    loss: Annotated[
        str | None, "A loss of your own, MODULE:NAME; the task's unless given."
    ]
    attack: Annotated[
        str | None,
        "flip (against the cohort, within the bound), wraparound, oversize, garbage, or"
        " a function of your own, MODULE:NAME.",
    ]
    attackers: Annotated[
        int | None, "How many clients attack; 1 unless given.", _ONE_OR_MORE
    ]
    per_client: Annotated[
        bool, "A real owner's code for each; slower, exact to the bit."
    ]
    seed: Annotated[
        int | None, "Repeats a simulation; no real run has one.", click.IntRange(min=0)
    ]
    device: Annotated[str, "Where gradients are computed: cpu, cuda."] = "cpu"
    plot: Annotated[
        Path | None,
        "Picture of accuracy and ε by round, or with --try of the settings: .png, .pdf"
        " or .svg.",
    ]
    save: Annotated[Path | None, "Rounds and summary as JSON."]
    as_json: AsJson


@command()
def simulate(request: SimulationRequest) -> None:
    """Play a task's whole training in one process: no servers, no TLS, no secrecy.

    The same gradients, clips, validation rule, noise, denominator and
    accountants as in a real run, with as many virtual clients as there are
    records. What it prints is simulated, and certifies nothing.

        precad simulate task.toml --clients 1000

        precad simulate task.toml --attack flip --attackers 50 --plot run.png

    \b
        precad simulate task.toml --data public.csv --held-out test.csv --public \\
          --try learning_rate=.25,.5,1

    What it says of private records tells of them: each simulation, and each
    choice by --try, spends privacy that no account counts. So --try takes
    public or synthetic records alone (--public), or a data set by its name.
    """  # noqa: D301 -- click reads the control character
    _check_request(request)
    from precad.cli import settings_of  # noqa: PLC0415
    from precad.simulation import simulate as play  # noqa: PLC0415
    from precad.simulation.rounds import checked_seed  # noqa: PLC0415
    from precad.simulation.search import fits, search  # noqa: PLC0415

    out = sys.stderr if request.as_json else sys.stdout
    task = Task.load(request.task)
    data = _data(request)
    attack: Attack | str | None = request.attack
    if request.attack is not None and ":" in request.attack:
        attack = own_object("--attack", request.attack)
    model = None if request.model is None else own_model(request.model)
    loss = own_object("--loss", request.loss)
    evaluated = model_asked_about(request.evaluated_model, request.evaluated_task)
    seed = checked_seed(request.seed)

    def train(task: Task, seed: int) -> "SimulatedTraining":
        """Play the training of one task, under a bar."""
        rounds = request.rounds or task.mechanism.releases
        with Bar("simulated round", rounds, out) as bar:

            def show(played: "SimulatedRound", _: object) -> None:
                """Move the bar; where nothing is redrawn, print some rounds."""
                text = f"accepted {played.accepted} of {played.cohort}{played.quality}"
                number = played.number
                bar.at(number, text)
                if bar.disable and (number % PLAIN_EVERY == 0 or number in (1, rounds)):
                    say(f"simulated round {number:>3}/{rounds}: {text}", out=out)

            return play(
                task,
                data,
                model,
                clients=request.clients,
                rounds=request.rounds,
                seed=seed,
                path="per-client" if request.per_client else "stacked",
                test=request.held_out,
                loss=loss,
                evaluated=evaluated,
                attack=attack,
                attackers=request.attackers,
                device=request.device,
                on_round=show,
            )

    if request.tries:
        settings, refused = settings_of(task, request.tries)
        tasks = [setting.task for setting in settings]
        seeds = range(seed, seed + (request.seeds or 5))
        together = (
            attack is None
            and not request.per_client
            and request.device == "cpu"
            and fits(tasks, request.clients or task.enrolment.clients)
        )
        trained = search(
            tasks,
            data,
            model,
            clients=request.clients,
            rounds=request.rounds,
            seeds=seeds,
            test=request.held_out,
            loss=loss,
            play=None if together else train,
        )
        if together:
            with Bar("seeds", len(seeds), out) as bar:
                trials = [*bar.track(trained, task_id=bar.task_ids[0])]
        else:
            trials = [*trained]
        _conclude_search(
            out,
            request,
            settings,
            refused=refused,
            trials=trials,
            seeds=seeds,
        )
        return
    training = train(task, seed)
    warn_of_clip(training.task, training.largest)
    warn(training.off_plan)
    _conclude(out, training, request)
    if request.as_json:
        print_json(training.summary())
    elif task.blocks:
        from precad.cli.ask_command import show  # noqa: PLC0415
        from precad.client.answers import answers_of  # noqa: PLC0415

        show(answers_of(task, training.theta, training.units))


def _conclude_search(
    out: TextIO,
    request: SimulationRequest,
    settings: "Sequence[Setting]",
    *,
    refused: "Sequence[Values]",
    trials: "Sequence[Sequence[Trial]]",
    seeds: range,
) -> None:
    """Show what settings learnt and write it as the request wants it."""
    # SciPy takes a second to import.
    from precad.cli import compare, draw_settings, rows_of  # noqa: PLC0415

    measure, rows = rows_of(settings, trials, request.measure)
    document = compare(
        out,
        settings,
        rows,
        refused=refused,
        measure=measure,
        seeds=seeds,
        write=request.write,
    )
    unlike = trials[0][0].unlike
    if unlike and measure == "accuracy":
        warn(
            f"accuracy says little here: {unlike}. Compare by --measure, such as auc or"
            " sensitivity, or balanced-accuracy of more than two classes",
            out,
        )
    if request.plot is not None:
        draw_settings(request.plot, settings, rows, measure=measure)
    if request.save is not None:
        request.save.write_text(json_of(document, indent=1) + "\n", encoding="utf-8")
    if request.as_json:
        print_json(document)


def _check_request(request: SimulationRequest) -> None:
    """Refuse options of `precad simulate` that don't go together, before any work.

    Warn on stderr where what it prints costs somebody privacy. Raises Misconfiguration.
    """
    tries = request.tries
    require_writable("--plot", request.plot)
    require_writable("--save", request.save)
    require_writable("--write", request.write)
    if not tries:
        refuse_given(
            request,
            ("seeds", "measure", "write"),
            why="goes with --try alone",
            by="give --try",
        )
    if request.write is not None and request.rounds is not None:
        raise Misconfiguration(
            "--rounds",
            request.rounds,
            "--write keeps the task's own: give --try rounds=NUMBER",
        )
    rounds_tried = any(words.startswith("rounds=") for words in tries)
    if request.rounds is not None and rounds_tried:
        raise Misconfiguration(
            "--rounds", request.rounds, "--try says it: leave one of them out"
        )
    if not request.data:
        return
    if request.dataset is not None:
        raise Misconfiguration(
            "--dataset", request.dataset, "give either owners' files, by --data, or it"
        )
    if tries and not request.public:
        raise Misconfiguration(
            "--try",
            tries[0],
            "choosing settings by records spends their privacy, which no account"
            " counts: give public or synthetic records, and say so with --public",
        )
    if tries and request.held_out is None:
        raise Misconfiguration(
            "--held-out", None, "give records that settings are compared on"
        )
    if not request.public:
        warn(
            "this simulation protects nobody: what it prints tells of these records,"
            " and no account counts that (--public, where they are)"
        )


def _data(request: SimulationRequest) -> "Path | list[Path] | DataSet":
    """Return what is trained on: owners' files, as given, or the named data set.

    One file is dealt to the clients, several are an owner's each. Raises
    Misconfiguration: there is no data set of this name.
    """
    from precad.simulation.datasets import load  # noqa: PLC0415

    match request.data:
        case ():
            return load(request.dataset or "digits")
        case (path,):
            return path
        case paths:
            return [*paths]


def _conclude(
    out: TextIO, training: "SimulatedTraining", request: SimulationRequest
) -> None:
    """Write the files that are wanted; say what was simulated, and that it was."""
    if request.plot is not None:
        training.plot(request.plot)
    if request.save is not None:
        training.save(request.save)
    files = [str(path) for path in (request.plot, request.save) if path is not None]
    seconds = sum(played.seconds for played in training.rounds)
    counted = sum(played.accepted for played in training.rounds)
    rejected = sum(
        (Counter(played.rejected) for played in training.rounds), Counter[str]()
    )
    reasons = "".join(f", {count} not ({why})" for why, count in rejected.items())
    result = str(training)
    text = (
        f"{result[0].upper()}{result[1:]}.\n{counted} updates counted{reasons} in"
        f" {seconds:.1f} s; seed {training.seed}, {training.path} path."
    )
    if files:
        text += f"\nFiles: {', '.join(files)}"
    say("simulated, not protected", style="bold", out=out)
    say(text, out=out)
