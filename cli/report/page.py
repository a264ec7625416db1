"""A report as one HTML file that needs nothing else: no script, no network."""

from importlib.resources import files

from precad.cli.report import pictures, words
from precad.cli.report.facts import Report


def page(report: Report) -> str:
    """The file's text."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 -- of an extra

    template = files("precad.cli.report").joinpath("page.html").read_text(encoding="utf-8")
    # What comes from a task or a database is text, never markup.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    return environment.from_string(template).render(
        report=report,
        guarantees=[(each, words.guarantee_sentence(each)) for each in report.guarantees],
        robustness=[
            (each, words.robustness_sentence(each), pictures.error_by_attackers(each))
            for each in report.robustness
        ],
        inputs=None if report.inputs is None else words.inputs_sentence(report.inputs),
        accuracy_plot=pictures.accuracy_by_round(report),
        epsilon_plot=pictures.epsilon_by_round(report),
        least=words.least,
        most=words.most,
        sound=not report.differences and not any(each.findings for each in report.ledgers),
    )
