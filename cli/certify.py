"""`precad certify`: what an attack on the training, or on an input, can't change."""

import click

from precad.cli import CertifyRequest, Loss, Prediction, Smoothing, command


@click.group()
def certify() -> None:
    """What bad owners, records or inputs can't change."""


def respond(request: CertifyRequest) -> None:
    """Compute the certificate that is asked for, and print it."""
    # Not above: SciPy takes a second to load.
    from precad.cli import answer  # noqa: PLC0415

    answer(request)


@command(certify)
def prediction(request: Prediction) -> None:
    """Certify the majority vote of independently trained private models.

    For each point: the label, and the radius, which is the largest number of training
    records (or clients) that may be added, or deleted, without changing the majority in
    expectation over training. Where the votes are too close, the point abstains.

    \b
    Votes of 1,000 models on MNIST, trained with DP-SGD for 469 rounds:
      precad certify prediction votes.npy --sampling-rate 0.00213 \\
        --noise-multiplier 3 --rounds 469 --also rdp --plot radius.png
    Finished runs of one task (the radius counts clients):
      precad certify prediction --runs run-1 run-2 run-3
    """  # noqa: D301 -- click reads the control character
    respond(request)


@command(certify)
def loss(request: Loss) -> None:
    """Bound the expected loss of a private model after so many attackers.

    The loss may be any bounded score: a test loss, or an attacker's own objective (its
    attack inefficacy). Losses of several independent runs, [runs] or [runs, points],
    give an expected loss with a confidence interval; --loss takes one that is known.
    One finished run alone gives no expectation: the bounds are then shown for several
    values of it.

    \b
    A known expected loss of 0.2, clients with √2·σ·R/C = 4:
      precad certify loss --loss 0.2 --unit client --sampling-rate 0.1 \\
        --noise-multiplier 4 --rounds 100 --tau 2
    Finished runs:
      precad certify loss --runs run-1 run-2 run-3
    """  # noqa: D301 -- click reads the control character
    respond(request)


@command(certify)
def smoothing(request: Smoothing) -> None:
    """Certify predictions against changed inputs (Cohen et al.'s randomised smoothing).

    Of a trained model, whose noisy votes are drawn here, or of votes in a file. The
    radius is an ℓ2 distance between inputs, in their own units; where the top class
    isn't sure, it abstains.

    \b
    A trained model on held-out records; broken off, it goes on where --keep ended:
      precad certify smoothing --task task.toml --model-file model.safetensors \\
        --data held-out.npz --sigma 0.25 --keep votes.jsonl --plot radius.png
    10,000 noisy copies of each input, σ = 0.5:
      precad certify smoothing noisy-votes.npy --sigma 0.5 --labels truth.npy
    """  # noqa: D301 -- click reads the control character
    respond(request)
