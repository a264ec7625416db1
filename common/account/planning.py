"""Planning a task: which σ, C/R', q, p and T give privacy, robustness and a usable model.

Everything is relative to R', the record clip with the rounding in it, so that neither R nor the
number of fractional bits enters.

- **Privacy** sets the least σ: guarantee 1 (one server corrupted), exact, over the 0.999
  quantile of a client's participations.
- **Robustness** sets the largest C/(R'·σ): PRECAD Theorem 2 in closed form with Lemma 8's μ by
  the central limit theorem, hence asymptotic: good for planning; a finished run is certified
  exactly.
- **Accuracy** has a proxy: the norm of a run's summed noise over the norm of its summed signal
  if every clipped gradient pointed the same way,
  √2·σ·√d/(q·n·min(p·m, C/R')·√T). Real gradients agree less and shrink as training goes on, so
  it compares settings; it doesn't predict an accuracy.

With robustness the proxy can't fall below K·√d/(n·Kμ), whatever σ, q and T: only more clients
or a smaller model help (``Floor``).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from precad.common import checks
from precad.common.account import gdp
from precad.common.account.calibrate import least_noise_multiplier
from precad.common.account.events import poisson_gaussian
from precad.common.account.guarantees import Adversary, Run, planned_participations, spent
from precad.common.account.participations import record_epsilon

VACUOUS = 0.99
"""A loss bound above this share of B says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a task should give, and the data that it has.

    Attributes:
        clients: n, enrolled.
        records: m, of each client.
        dimension: d, parameters of the model.
        epsilon: ε of a record against one curious server.
        delta: δ, in (0, 1).
        noise_to_signal: the accuracy proxy, at most this.
        malicious: K clients that may submit anything; 0 for no robustness.
        loss: expected loss L on one record without attackers, in (0, B).
        tolerated_loss: the loss that K attackers may cause at most, in (L, B).
        loss_bound: B, the largest value that the loss takes.
    """

    clients: int
    records: int
    dimension: int
    epsilon: float
    delta: float
    noise_to_signal: float
    malicious: int
    loss: float
    tolerated_loss: float
    loss_bound: float

    def __post_init__(self) -> None:
        checks.count("clients", self.clients, 1)
        checks.count("records", self.records, 1)
        checks.count("dimension", self.dimension, 1)
        checks.positive("epsilon", self.epsilon, "the wanted ε")
        checks.epsilon(self.epsilon)
        checks.inside_unit_interval("delta", self.delta)
        checks.positive("noise_to_signal", self.noise_to_signal, "the wanted noise over signal")
        checks.count("malicious", self.malicious)
        self.tolerated_group_mu()

    def tolerated_group_mu(self) -> float:
        """Kμ up to which the loss bound stays tolerated."""
        return gdp.tolerated_group_mu(self.loss, self.tolerated_loss, self.loss_bound)


class SettingVerdict(StrEnum):
    """How a setting fares."""

    MEETS = "meets all"
    TOO_NOISY = "too noisy"
    NOT_PRIVATE = "ε too large"
    LOSS_TOO_HIGH = "loss too high"
    SAYS_NOTHING = "says nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One choice of σ, C/R', p, q and T, what it gives and what it costs.

    Attributes:
        run: p, q, T and σ.
        clip_ratio: C/R'.
        participations: the 0.999 quantile of one client's.
        epsilon: of a record against one curious server, exact.
        epsilon_clients_only: of a record against other clients, exact.
        noise_to_signal: the accuracy proxy over the run.
        group_mu: Kμ by the central limit theorem; infinite where it leaves floating point.
        worst_loss: what K attackers can cause at most, by that μ.
        unclipped_worst_loss: the same if the client clip never acted (C = p·m·R'): what
            privacy's noise alone is worth against attackers.
        gradients: per-record gradients that one client computes.
        upload_bytes: that one client sends to both servers: a seed and d ring elements a round.
        verdict: against what was wanted.
    """

    run: Run
    clip_ratio: float
    participations: int
    epsilon: float
    epsilon_clients_only: float
    noise_to_signal: float
    group_mu: float
    worst_loss: float
    unclipped_worst_loss: float
    gradients: int
    upload_bytes: int
    verdict: SettingVerdict


@dataclass(frozen=True, slots=True)
class Floor:
    """What no σ, q or T can change once K attackers must be tolerated."""

    noise_to_signal: float
    """K·√d/(n·Kμ): the proxy is at least this."""
    clients: int
    """Enrolled clients for which the floor reaches the wanted proxy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Every setting tried, the best ones first.

    Attributes:
        wanted: what was asked.
        settings: those that meet everything by what they cost in uploads, then the others by
            the proxy.
        floor: what robustness alone asks of the number of clients; None without attackers.
    """

    wanted: Wanted
    settings: tuple[Setting, ...]
    floor: Floor | None

    @property
    def best(self) -> Setting | None:
        """The setting with the least uploads among those that meet everything."""
        first = self.settings[0] if self.settings else None
        return first if first is not None and first.verdict is SettingVerdict.MEETS else None


def plan(
    wanted: Wanted,
    *,
    record_rates: Iterable[float],
    client_rates: Iterable[float],
    rounds: Iterable[int],
    noise_multiplier: float | None = None,
    clip_ratio: float | None = None,
) -> Plan:
    """Every combination of p, q and T with the σ and C/R' that suit it best.

    Args:
        wanted: targets and data sizes.
        record_rates: p to try, each in (0, 1].
        client_rates: q to try, each in (0, 1].
        rounds: T to try.
        noise_multiplier: σ, if it is fixed already; else the least that privacy allows.
        clip_ratio: C/R', if it is fixed already; else the one with the least noise over signal.

    Raises:
        Misconfiguration: a value is out of its range, or no noise reaches the wanted ε.
    """
    if clip_ratio is not None:
        checks.positive("clip_ratio", clip_ratio, "C/R', client over record clip")
    settings = [
        _setting(wanted, p, q, t, noise_multiplier, clip_ratio)
        for p in record_rates
        for q in client_rates
        for t in rounds
    ]
    settings.sort(
        key=lambda s: (
            (0, s.upload_bytes, s.noise_to_signal)
            if s.verdict is SettingVerdict.MEETS
            else (1, s.noise_to_signal, s.upload_bytes)
        )
    )
    return Plan(wanted, tuple(settings), _floor(wanted))


def _setting(
    wanted: Wanted, p: float, q: float, t: int, fixed_sigma: float | None, fixed_ratio: float | None
) -> Setting:
    for name, rate in (("record_rate", p), ("client_rate", q)):
        checks.positive(name, checks.rate(name, rate), "none would be drawn")
    checks.count("rounds", t, 1)
    participations = max(1, planned_participations(q, t))
    sigma = fixed_sigma
    if sigma is None:
        sigma = least_noise_multiplier(
            lambda s: poisson_gaussian(rate=p, noise_multiplier=s, count=participations),
            epsilon=wanted.epsilon,
            delta=wanted.delta,
        )
    whole = p * wanted.records
    ratio = fixed_ratio
    if ratio is None:
        ratio = whole
        if wanted.malicious:
            mu = wanted.tolerated_group_mu() / wanted.malicious
            ratio = min(whole, sigma * gdp.largest_clip_ratio(mu, q, t))
    run = Run(record_rate=p, client_rate=q, noise_multiplier=sigma, rounds=t)
    group, worst = _worst_loss(wanted, run, ratio)
    proxy = float(noise_to_signal(wanted, run, np.asarray(ratio)))
    epsilon = _epsilon(run, participations, wanted.delta)
    return Setting(
        run=run,
        clip_ratio=ratio,
        participations=participations,
        epsilon=epsilon,
        epsilon_clients_only=spent(run.event(Adversary.CLIENTS_ONLY), wanted.delta),
        noise_to_signal=proxy,
        group_mu=group,
        worst_loss=worst,
        unclipped_worst_loss=_worst_loss(wanted, run, whole)[1],
        gradients=round(whole * participations),
        upload_bytes=participations * (8 * wanted.dimension + 32),
        verdict=_verdict(wanted, epsilon, proxy, worst),
    )


def _epsilon(run: Run, participations: int, delta: float) -> float:
    return record_epsilon(
        record_rate=run.record_rate,
        noise_multiplier=run.noise_multiplier,
        participations=participations,
        delta=delta,
    )


def _worst_loss(wanted: Wanted, run: Run, ratio: float) -> tuple[float, float]:
    """Kμ of Theorem 2 by Lemma 8's central limit theorem at one C/R', and the loss bound."""
    event = replace(run, sensitivity_ratio=1 / ratio).event(Adversary.CLIENT_LEVEL)
    mu = gdp.clt_mu(event.rate, event.noise_multiplier, event.count)
    group = gdp.group_mu(mu, wanted.malicious)
    worst = gdp.shifted(wanted.loss / wanted.loss_bound, group)
    return group, wanted.loss_bound * float(worst)


def noise_to_signal(wanted: Wanted, run: Run, ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """The accuracy proxy √2·σ·√d/(q·n·min(p·m, C/R')·√T), for each C/R' in ``ratio``."""
    signal = run.client_rate * wanted.clients * np.minimum(run.record_rate * wanted.records, ratio)
    noise = math.sqrt(2 * wanted.dimension) * run.noise_multiplier
    return np.asarray(noise / (signal * math.sqrt(run.rounds)), dtype=np.float64)


def robustness_trade_off(
    wanted: Wanted, setting: Setting, malicious: int, points: int = 200
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noise over signal and loss bound as C/R' runs up to p·m at the setting's σ.

    Args:
        wanted: targets and data sizes; its own K is not used.
        setting: p, q, T and σ.
        malicious: K.
        points: of the curve.

    Returns:
        Two ``[points]`` float64 arrays: the proxy (falling) and the worst loss (rising).
    """
    whole = setting.run.record_rate * wanted.records
    ratios = np.geomspace(whole / 1000, whole, points)
    attacked = replace(wanted, malicious=malicious)
    worst = [_worst_loss(attacked, setting.run, float(ratio))[1] for ratio in ratios]
    return noise_to_signal(wanted, setting.run, ratios), np.array(worst)


def privacy_trade_off(
    wanted: Wanted, setting: Setting, points: int = 12
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noise over signal and exact ε as σ varies around the setting's, with C = p·m·R'.

    Returns:
        Two ``[points]`` float64 arrays: the proxy (rising) and ε (falling).
    """
    whole = np.asarray(setting.run.record_rate * wanted.records)
    runs = [
        replace(setting.run, noise_multiplier=float(setting.run.noise_multiplier * factor))
        for factor in np.geomspace(0.5, 4, points)
    ]
    proxy = [float(noise_to_signal(wanted, run, whole)) for run in runs]
    epsilon = [_epsilon(run, setting.participations, wanted.delta) for run in runs]
    return np.array(proxy), np.array(epsilon)


def _verdict(wanted: Wanted, epsilon: float, proxy: float, worst: float) -> SettingVerdict:
    # The search for σ and for C/R' ends a rounding away from its target.
    slack = 1 + 1e-9
    if epsilon > wanted.epsilon * slack:
        return SettingVerdict.NOT_PRIVATE
    if wanted.malicious and worst > VACUOUS * wanted.loss_bound:
        return SettingVerdict.SAYS_NOTHING
    if wanted.malicious and worst > wanted.tolerated_loss * slack:
        return SettingVerdict.LOSS_TOO_HIGH
    if proxy > wanted.noise_to_signal * slack:
        return SettingVerdict.TOO_NOISY
    return SettingVerdict.MEETS


def _floor(wanted: Wanted) -> Floor | None:
    """ln(1+x) ≤ x in ``gdp.largest_clip_ratio`` gives C/(R'·σ) ≤ √2·μ/(q·√T) for every q and T."""
    if not wanted.malicious:
        return None
    reach = wanted.malicious * math.sqrt(wanted.dimension) / wanted.tolerated_group_mu()
    return Floor(reach / wanted.clients, math.ceil(reach / wanted.noise_to_signal))
