"""Prediction of each client's speed from past rounds, and a test of whether history predicts anything.

Slow clients may stay slow, or every round may draw speeds anew; in the second case loads by past speed only
follow noise. So the history is tested. For each later round, every rule below predicts the logarithm of each
client's step time from the rounds before. The rule with the least mean absolute error is used, but only if it
is clearly better than the best rule that treats all clients as equal.

    rule (half-life h, trust t):   common + t * (level_w - common)

level_w is the median of the client's own rounds, weighted by 2^(-age / h); common is the median over the
clients. A short half-life follows a drift, a long one averages out noise. Futures are drawn from the rule's
own prediction errors in those later rounds.

With too few rounds to test, only medians and spreads of earlier runs are known. Their levels are shrunk to
their common mean (James and Stein 1961) by the ratio of spread to difference.

Shape letters: r rounds, w clients, b futures drawn.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.history import Speeds
from fedgc.tuner.history import ClientHistory, Float, robust

LEAST_ROUNDS: Final = 3  # two to learn from, one to test on
HALF_LIVES: Final = (1.0, 4.0, 16.0)
TRUSTS: Final = (0.5, 1.0)
LEAST_SKILL: Final = 0.05  # share of the error saved; with less, clients are treated as equal
SIGNIFICANT: Final = 2.0  # deviations of the mean gain
FEW: Final = 4.0  # number of a client's own errors that weighs as much as those of all clients
UNKNOWN_STEP_S: Final = 0.05  # only ratios matter without measurements
UNKNOWN_SPREAD: Final = 0.7  # of log step times: about a factor of two either way
LEAST_SPREAD: Final = 0.05
HABIT: Final = 4.0  # weight of the fleet's failure rate against a client's own, in rounds


@dataclass(frozen=True, slots=True)
class Belief:
    """The expected step times, failure rates and errors; `trusted`: differences between clients persist."""

    clients: tuple[str, ...]
    step_w: Float
    fails_w: Float
    spread_w: Float
    errors_rw: Float  # logarithmic errors of past predictions; no rows if there were none
    rounds_w: tuple[int, ...]
    trusted: bool
    known: bool
    words: str

    def draw(self, futures: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Draw step times and the share of a round after which each client dies (infinite: it lives).

        The errors of one past round are drawn together, since they may be correlated.
        """
        shape = (futures, len(self.clients))
        share_bw = np.where(rng.random(shape) < self.fails_w, rng.random(shape), np.inf)
        normal_bw = rng.normal(size=shape) * self.spread_w
        pool = self.errors_rw[np.isfinite(self.errors_rw)]
        if not pool.size:
            return self.step_w * np.exp(normal_bw), share_bw
        any_bw = pool[rng.integers(pool.size, size=shape)]
        own_bw = self.errors_rw[rng.integers(len(self.errors_rw), size=futures)]
        count_w = np.isfinite(self.errors_rw).sum(axis=0)
        own = np.isfinite(own_bw) & (rng.random(shape) < (count_w / (count_w + FEW) if self.trusted else 0))
        seen_w = count_w > 0
        error_bw = np.where(own, own_bw, any_bw)
        return self.step_w * np.exp(np.where(seen_w | (not self.trusted), error_bw, normal_bw)), share_bw


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule, its prediction for the next round, and its past errors."""

    half_life: float
    trust: float
    next_w: Float
    errors_rw: Float

    @property
    def error(self) -> float:
        """Return its mean absolute error."""
        return float(np.nanmean(np.abs(self.errors_rw)))


def believe(history: ClientHistory, before: Speeds) -> Belief:
    """Return what to expect, given the past of this run and the speeds of runs before it."""
    prior = replace(_untested(history, robust(history, before)), fails_w=_failures(history, before))
    tested = _tested(history)
    if tested is None:
        return prior
    rule, equal = tested
    skill = 1.0 - rule.error / equal.error if equal.error > 0 else 0.0
    trusted = skill >= LEAST_SKILL and _gain(rule, equal) > SIGNIFICANT
    held = rule if trusted else equal
    seen_w = np.isfinite(history.step_rw).any(axis=0)
    words = (
        f"history helps: telling the clients apart saved {skill:.0%} of the error on {len(held.errors_rw)} "
        f"later rounds, looking back about {held.half_life:g} rounds"
        if trusted
        else f"history does not help: on {len(held.errors_rw)} later rounds, a client's own past "
        f"predicted its speed no better than the fleet's common speed"
    )
    return Belief(
        history.clients,
        np.where(seen_w, np.exp(held.next_w), prior.step_w if trusted else np.exp(_middle(held.next_w))),
        prior.fails_w,
        prior.spread_w,
        held.errors_rw,
        prior.rounds_w,
        trusted,
        known=not history.contradictory,
        words=f"no history: {history.struck} measurements were rejected" if history.contradictory else words,
    )


def _tested(history: ClientHistory) -> tuple[_Rule, _Rule] | None:
    """Return the best rule that tells clients apart, and the best that does not; None: too few rounds."""
    measured_rw = history.step_rw[np.isfinite(history.step_rw).any(axis=1)]
    if len(measured_rw) < LEAST_ROUNDS or len(history.clients) < 2:
        return None
    log_rw = np.log(measured_rw)
    rules = [rule for rule in _rules(log_rw) if np.isfinite(rule.errors_rw).any()]
    apart = [rule for rule in rules if rule.trust > 0]
    equal = [rule for rule in rules if rule.trust == 0]
    if not apart:
        return None
    return min(apart, key=lambda rule: rule.error), min(equal, key=lambda rule: rule.error)


def _rules(log_rw: Float) -> Iterator[_Rule]:
    rounds = len(log_rw)
    first = max(1, rounds // 2)
    for half_life in HALF_LIVES:
        levels = [weighted_median(log_rw[:upto], half_life) for upto in range(first, rounds + 1)]
        for trust in (0.0, *TRUSTS):
            said = [_middle(level) + trust * (level - _middle(level)) for level in levels]
            yield _Rule(half_life, trust, said[-1], log_rw[first:] - np.stack(said[:-1]))


def _middle(level_w: Float) -> float:
    known = level_w[np.isfinite(level_w)]
    return float(np.median(known)) if known.size else math.nan


def _gain(rule: _Rule, equal: _Rule) -> float:
    """Return the mean gain in units of its own standard deviation."""
    gains = np.abs(equal.errors_rw) - np.abs(rule.errors_rw)
    gains = gains[np.isfinite(gains)]
    if gains.size < 2:
        return 0.0
    deviation = float(gains.std(ddof=1)) / math.sqrt(gains.size)
    return float(gains.mean()) / max(deviation, 1e-12)


def weighted_median(log_rw: Float, half_life: float) -> Float:
    """Return each column's weighted median; a round that is `half_life` rounds older weighs half as much.

    >>> weighted_median(np.array([[1.0], [1.0], [5.0]]), 16.0).tolist()
    [1.0]
    >>> weighted_median(np.array([[1.0], [1.0], [5.0]]), 0.5).tolist()
    [5.0]
    """
    age_r = np.arange(len(log_rw))[::-1]
    weight_rw = np.where(np.isfinite(log_rw), 0.5 ** (age_r / half_life)[:, None], 0.0)
    order_rw = np.argsort(log_rw, axis=0)  # NaN comes last and has no weight
    sorted_rw = np.take_along_axis(log_rw, order_rw, axis=0)
    upto_rw = np.cumsum(np.take_along_axis(weight_rw, order_rw, axis=0), axis=0)
    at_w = (upto_rw < upto_rw[-1] / 2 - 1e-12).sum(axis=0)
    return np.asarray(sorted_rw[at_w, np.arange(log_rw.shape[1])])


def _untested(history: ClientHistory, speeds: Speeds) -> Belief:
    """Return a belief from medians and spreads alone, shrunk to their common mean."""
    found = [speeds.known.get(client) for client in history.clients]
    rounds_w = tuple(speed.rounds if speed else 0 for speed in found)
    there = np.asarray([rounds > 0 for rounds in rounds_w], bool)
    log_w = np.asarray([math.log(speed.step_s) if speed else math.nan for speed in found])
    spread_w = np.asarray(
        [math.log1p(speed.spread_s / speed.step_s) if speed else math.nan for speed in found]
    )
    trust = _trust(log_w[there], spread_w[there], np.asarray(rounds_w)[there])
    common = float(np.mean(log_w[there])) if there.any() else math.log(UNKNOWN_STEP_S)
    once_w = np.asarray(rounds_w) < 2
    known = bool((~once_w).sum() > 1) and not history.contradictory
    return Belief(
        history.clients,
        np.exp(np.where(there, common + trust * (log_w - common), common)),
        np.zeros(len(found)),
        np.where(once_w, UNKNOWN_SPREAD, np.maximum(spread_w, LEAST_SPREAD)),
        np.empty((0, len(history.clients))),
        rounds_w,
        trusted=bool(known and trust > 0),
        known=known,
        words=_untested_words(rounds_w, known=known, trust=trust),
    )


def _untested_words(rounds_w: tuple[int, ...], *, known: bool, trust: float) -> str:
    if not known:
        often = sum(rounds > 1 for rounds in rounds_w)
        return f"no history: {often} of {len(rounds_w)} clients were measured in two rounds or more"
    return f"from speeds alone, which explain {trust:.0%} of the differences between clients"


def _trust(log_w: Float, spread_w: Float, rounds_w: Float) -> float:
    if log_w.size < 2:
        return 0.0
    between = float(np.var(log_w, ddof=1))
    within = float(np.mean(spread_w**2 / rounds_w))
    return max(0.0, 1.0 - within / between) if between > 0 else 0.0


def _failures(history: ClientHistory, before: Speeds) -> Float:
    """Return failure rates, shrinking a client's few rounds to the fleet's rate.

    The last rounds and the longer history may overlap, so the larger of the two rates is used.
    """
    found = [before.known.get(client) for client in history.clients]
    earlier_w = np.asarray([speed.rounds if speed else 0 for speed in found], np.float64)
    rounds_w = np.maximum(earlier_w, history.rounds)
    if not rounds_w.any():
        return np.zeros(len(found))
    before_w = np.asarray([speed.failures if speed else 0.0 for speed in found])
    seen_w = history.failed_rw.mean(axis=0) if history.rounds else before_w
    count_w: Float = np.clip(np.maximum(seen_w, before_w), 0.0, 1.0) * rounds_w
    fleet = float(count_w.sum() / rounds_w.sum())
    rate_w: Float = (count_w + HABIT * fleet) / (rounds_w + HABIT)
    return rate_w
