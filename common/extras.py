"""Which of the distribution's extras brings a package that isn't installed."""

from precad.common.errors import PrecadError

LEAST_EXTRA = {
    "alembic": "server",
    "crypten": "server",
    "dp_accounting": "plan",
    "jinja2": "report",
    "joblib": "simulation",
    "matplotlib": "plan",
    "scipy": "plan",
    "sklearn": "simulation",
    "sqlalchemy": "server",
    "torch": "client",
    "torchvision": "simulation",
}
"""Of every package that not every party needs, by the name it is imported by."""


class MissingPackage(PrecadError, ImportError):
    """A package isn't installed that one of precad's extras brings; says the command."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which isn't installed: pip install 'precad[{extra}]'"
        )


def missing(
    error: ModuleNotFoundError, what: str, extra: str | None = None
) -> MissingPackage | None:
    """What to say of a failed import; None where no extra brings the package.

    Args:
        error: of the import.
        what: needs it, as whoever reads this calls it.
        extra: brings all that it needs; by default the least extra with the package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in LEAST_EXTRA:
        return None
    return MissingPackage(what, package, extra or LEAST_EXTRA[package])
