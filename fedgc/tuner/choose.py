"""The tuner's choice of replicas, blocks, loads and deadline, with a prediction, its band, and reasons.

    candidates   1 (no redundancy) to 8 replicas; blocks 1 (no code), 2, 4 or chosen at the stop
    screened     all candidates, by an array bound; the best few are kept
    confirmed    by replay in the same futures; among statistically equal ones, the fewest replicas

Loads follow from the expected step times; the placement sets the order. The present plan is a candidate too.
Another plan must be clearly better, including the time to load the chunks that it moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.codes import best_blocks
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadSetting
from fedgc.history import Speeds
from fedgc.round.coded.lateness import expects_late
from fedgc.round.limits import DEAF_DEADLINE_S, LEAST_DEADLINE_S, late_s
from fedgc.round.plan import UNKNOWN_REPLICAS, Plan
from fedgc.tuner.band import Band, band_of
from fedgc.tuner.belief import Belief, believe
from fedgc.tuner.history import ClientHistory, Float, robust
from fedgc.tuner.trial import (
    REPEAT,
    Futures,
    Question,
    Setting,
    collected_s,
    cover_s,
    fluid_s,
    known_speeds,
    replayed_s,
    thinned,
    upload_s,
)

COPIES: Final = (1, 2, 3, 4, 6, 8)
BLOCKS: Final = (2, 4)
SCREENED: Final = 32  # futures used for the bound
CONFIRMED: Final = 8  # futures used for replay
FINALISTS: Final = 4
INDIFFERENT: Final = 0.01  # share of the round's time that does not justify another replica
SAME: Final = 1e-5  # share of the round's time that counts as equal
STAYS: Final = 0.03  # share by which another plan must be better than the present one
DEADLINE_QUANTILE: Final = 0.99
DEADLINE_SLACK: Final = 2.0  # a deadline bounds a round and must not cut off normal ones
BLIND_BAND: Final = 3.0  # factor without history
NAMED: Final = 4
FAR: Final = 1.25  # times the median: a client named in the reason
OFTEN: Final = 0.05  # share of its rounds
LEAST_SAID: Final = 0.005


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the history shows of a client that caused the choice, with the rounds and runs."""

    client: str
    step_s: float
    over_median: float
    fails: float
    rounds: int
    seen: Mapping[str, tuple[int, ...]]

    @property
    def words(self) -> str:
        """Return the evidence as text.

        >>> Evidence("a", 0.5, 4.0, 0.0, 3, {"spring": (1, 2, 9)}).words
        'a: 0.5 s a step, 4 times the median, over 3 rounds (1 to 9 of spring)'
        """
        fails = f", failing in {self.fails:.0%}" if self.fails >= LEAST_SAID else ""
        where = "; ".join(
            f"{rounds[0]} to {rounds[-1]} of {run}" if len(rounds) > 1 else f"{rounds[0]} of {run}"
            for run, rounds in self.seen.items()
        )
        return (
            f"{self.client}: {self.step_s:.3g} s a step, {self.over_median:.2g} times the median, "
            f"over {self.rounds} rounds{f' ({where})' if where else ''}{fails}"
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen settings, the predicted time and the reason; `rows` name the clients that caused it.

    `band` is that of the first round with this choice.
    """

    setting: Setting
    speeds: Speeds
    deadline_s: float | None  # None: without measurements
    band: Band
    trusted: bool
    known: bool
    reason: str
    rounds: int = 0  # of history used
    rows: tuple["Evidence", ...] = ()
    scores: tuple[tuple[str, float], ...] = ()  # the finalists, best first
    replayed_s: tuple[float, ...] = ()  # of the plan in drawn futures; none without history

    @property
    def predicted_s(self) -> float:
        """Return the expected time of a round."""
        return self.band.expected_s

    @property
    def replay_s(self) -> float | None:
        """Return the mean of the replays, before the correction by past rounds; None without replays."""
        return float(np.mean(self.replayed_s)) if self.replayed_s else None

    @property
    def correction(self) -> float:
        """Return the factor from the mean of the replays to the expected time."""
        return self.predicted_s / self.replay_s if self.replay_s else 1.0

    def band_after(self, ratios: Sequence[float]) -> Band:
        """Return the band of the next round, after rounds with these ratios of seen to replayed time."""
        return band_of(self.replayed_s, ratios) if self.replayed_s else self.band

    def settled(self, config: RunConfig) -> RunConfig:
        """Return the configuration with its open settings filled in."""
        if config.replicas == AUTO:
            fixed = (
                1 if config.blocks == AUTO else int(config.blocks)
            )  # limited later to the number of clients
            config = replace(config, replicas=max(self.setting.replicas, fixed))
        if config.blocks == AUTO:
            config = replace(config, blocks=self.setting.blocks or AUTO)
        if config.deadline_s == AUTO:
            config = replace(config, deadline_s=self.deadline_s or AUTO)
        return config


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: its plan on the whole fleet, its rank, and the cost of moving to it, for each round."""

    setting: Setting
    speeds: Speeds
    plan: Plan
    bound_s: float
    moving_s: float


def choose(
    question: Question,
    history: ClientHistory,
    before: Speeds,
    rng: np.random.Generator,
    present: Choice | None = None,
) -> Choice:
    """Return the choice for these clients; works without history too.

    `history` has the question's clients in their order; `before` are the speeds from earlier runs.
    """
    if history.clients != question.clients:
        raise BadSetting(
            f"history of {history.clients[:4]}: needed that of the clients {question.clients[:4]}"
        )
    belief = believe(history, before)
    speeds = known_speeds(question.clients, belief.step_w, before)
    if not belief.known or len(question.clients) == 1:
        return _blind(question, belief, robust(history, before))
    futures = Futures(*belief.draw(SCREENED, rng))
    trials = _screened(question, speeds, futures, present)
    return replace(_confirmed(question, (belief, history), trials, futures, present), rounds=history.rounds)


def settings(question: Question, speeds: Speeds) -> tuple[Setting, ...]:
    """Return all combinations that the configuration leaves open."""
    config, clients = question.config, len(question.clients)
    wanted: Sequence[int] = COPIES
    if config.blocks != AUTO:
        wanted = sorted({*COPIES, min(int(config.blocks), clients)})
    if config.replicas != AUTO:
        wanted = (min(int(config.replicas), clients),)
    elif not question.deals:
        wanted = (_least_copies(question),)
    found = [
        Setting(replicas, blocks)
        for replicas in wanted
        if replicas <= clients
        for blocks in _cuts(question, replicas, uploads=bool(upload_s(question, speeds).any()))
    ]
    return tuple(found)


def _cuts(question: Question, replicas: int, *, uploads: bool) -> tuple[int | None, ...]:
    """Return the blocks to try; without a measured uplink the round itself must choose."""
    if question.config.blocks != AUTO:
        fixed = min(int(question.config.blocks), _most_copies(question))
        return (fixed,) if fixed <= replicas else ()
    if replicas == 1:
        return (1,)
    return (1, None, *(blocks for blocks in BLOCKS if blocks <= replicas)) if uploads else (None,)


def _most_copies(question: Question) -> int:
    """Return the largest number of replicas that the data and the settings allow."""
    most = len(question.clients) if question.deals else _least_copies(question)
    return most if question.config.replicas == AUTO else min(most, int(question.config.replicas))


def _least_copies(question: Question) -> int:
    holds = [question.fleet.holds[client] for client in question.clients]
    return max(1, min(sum(chunk.number in held for held in holds) for chunk in question.fleet.chunks))


def _blind(question: Question, belief: Belief, speeds: Speeds) -> Choice:
    """Choose without history: replicas for one failure and one slow client, and a wide band."""
    clients, most = len(question.clients), _most_copies(question)
    blocks = None if question.config.blocks == AUTO else min(int(question.config.blocks), most)
    wanted = UNKNOWN_REPLICAS if question.config.replicas == AUTO and question.deals else most
    setting = Setting(min(most, max(wanted, blocks or 1)), 1 if blocks is None and clients == 1 else blocks)
    uploads = upload_s(question, speeds)
    guess_s = float(fluid_s(question, certain(belief), blocks or 1)[0]) + float(uploads.max())
    alone = clients == 1 and any(belief.rounds_w)
    words = "no history of a fleet: one client does all the work" if alone else belief.words
    return Choice(
        setting,
        speeds,
        None,
        Band(guess_s, guess_s / BLIND_BAND, guess_s * BLIND_BAND),
        trusted=False,
        known=False,
        reason=f"{setting.words}; {words}",
    )


def certain(belief: Belief) -> Futures:
    """Return the one future in which all clients are as fast as expected, and live."""
    return Futures(belief.step_w[None], np.full((1, len(belief.clients)), np.inf))


def _screened(
    question: Question, speeds: Speeds, futures: Futures, present: Choice | None
) -> tuple[Trial, ...]:
    """Return the candidates with the least bound, the present plan first."""
    here = _present(question, futures, present)
    plans: dict[int, Plan] = {}
    found = []
    for setting in settings(question, speeds):
        plan = plans.setdefault(setting.replicas, question.planned(Setting(setting.replicas, None), speeds))
        bound_s = _bound_s(question, plan, setting, speeds, futures)
        moving_s = _moving_s(question, here.plan, plan) if here else 0.0
        found.append(Trial(setting, speeds, plan, bound_s, moving_s))
    found.sort(key=lambda trial: trial.bound_s + trial.moving_s)
    finalists = found[:FINALISTS]
    if expects_late(upload_s(question, speeds).tolist(), late_s(question.config)):
        finalists = found[: FINALISTS // 2]  # the bound knows no late uploads: more kinds are replayed
        for blocks in dict.fromkeys(trial.setting.blocks for trial in found):
            kind = [trial for trial in found if trial.setting.blocks == blocks]
            finalists += [kind[0], max(kind, key=lambda trial: trial.setting.replicas)]
    finalists += [trial for trial in found if trial.setting.replicas == 1]  # always one without redundancy
    kept = {trial.setting: trial for trial in finalists}
    return ((here,) if here else ()) + tuple(kept.values())


def _present(question: Question, futures: Futures, present: Choice | None) -> Trial | None:
    """Return the present plan as a candidate, if the clients are still the same."""
    if present is None or not present.known or set(present.speeds.known) != set(question.clients):
        return None
    plan = question.planned(Setting(present.setting.replicas, None), present.speeds)
    bound_s = _bound_s(question, plan, present.setting, present.speeds, futures)
    return Trial(present.setting, present.speeds, plan, bound_s, 0.0)


def _bound_s(question: Question, plan: Plan, setting: Setting, speeds: Speeds, futures: Futures) -> float:
    cover_kb = cover_s(plan, futures)
    fluid_kb = np.stack([fluid_s(question, futures, blocks + 1) for blocks in range(len(cover_kb))])
    cover_kb = np.where(np.isfinite(cover_kb), cover_kb, 2.0 * _longest(cover_kb))
    work_k = np.sqrt(cover_kb * np.where(np.isfinite(fluid_kb), fluid_kb, cover_kb)).mean(axis=1)
    up_s = collected_s(question, speeds)
    blocks = setting.blocks or best_blocks(work_k.tolist(), up_s)
    return float(work_k[min(blocks, len(work_k)) - 1]) + up_s / blocks


def _longest(cover_kb: Float) -> float:
    finite = cover_kb[np.isfinite(cover_kb)]
    return float(finite.max()) if finite.size else 1.0


def _moving_s(question: Question, present: Plan, plan: Plan) -> float:
    """Return the time of loading the moved chunks, divided by the remaining rounds."""
    moved_w = (plan.placement.holds & ~present.placement.holds).sum(axis=1)
    load_s_w = [question.load_s.get(client, 0.0) for client in plan.clients]
    return float((moved_w * load_s_w).max()) / max(1, question.rounds_left)


def _confirmed(
    question: Question,
    held: tuple[Belief, ClientHistory],
    trials: Sequence[Trial],
    futures: Futures,
    present: Choice | None,
) -> Choice:
    """Replay the finalists in the same futures; take the simplest of those as good as the best."""
    few, kept = thinned(question, held[0].step_w, trials[-1].speeds, 2 * max(COPIES))
    sample = _representative(trials[-1].plan, futures)
    part = Futures(sample.step_bw[:, list(kept)], sample.dies_bw[:, list(kept)])
    up_s_w = upload_s(few, trials[-1].speeds)
    played = []
    for trial in trials:
        seconds = replayed_s(few, few.planned(trial.setting, trial.speeds), part, up_s_w)
        played.append(_with_all(trial, seconds, few.planned(trial.setting, trial.speeds), sample, part))
    times_tb = np.stack(played)
    risk_s = _risk_s(question, held[0], sample)
    extra_t = [trial.moving_s + (risk_s if trial.setting.replicas == 1 else 0.0) for trial in trials]
    score_t = times_tb.mean(axis=1) + np.asarray(extra_t)
    best = _plainest(trials, times_tb, score_t)
    stays = present is not None and len(trials) > 0 and trials[0].speeds is present.speeds
    if stays and score_t[0] <= score_t[best] * (1.0 + STAYS):
        best = 0
    named = sorted(
        zip((t.setting.words for t in trials), score_t.tolist(), strict=True), key=lambda each: each[1]
    )
    return _chosen(question, held, trials[best], times_tb[best], named, stays=stays and best == 0)


def _representative(plan: Plan, futures: Futures) -> Futures:
    """Return few representative futures, evenly spaced from the best to the worst for this plan."""
    cover_b = cover_s(plan, futures)[0]
    places = (np.arange(CONFIRMED) + 0.5) * len(cover_b) / CONFIRMED
    sample = np.argsort(cover_b, kind="stable")[places.astype(int)]
    return Futures(futures.step_bw[sample], futures.dies_bw[sample])


def _risk_s(question: Question, belief: Belief, sample: Futures) -> float:
    """Return the expected cost of failures too rare for the futures, for a round without replicas.

    Such a round waits until the failed client is given up, and then lacks its data. Half a failure is added
    to the observed ones, so that a client without failures has a rate above 0 (Jeffreys 1946).
    """
    seen = float(np.isfinite(sample.dies_bw).any(axis=1).mean())
    unseen = 0.5 / (1.0 + sum(belief.rounds_w))
    risk_s = question.config.grace_s * max(0.0, _somebody(belief.fails_w + unseen) - seen)
    rarer = _somebody(belief.fails_w) - seen
    if rarer <= 0.0:  # in all futures somebody fails, perhaps everybody: then no time is known
        return risk_s
    return risk_s + rarer * (REPEAT - 1.0) * float(fluid_s(question, sample).min())


def _somebody(fails_w: Float) -> float:
    """Return the probability that at least one client fails."""
    return 1.0 - float(np.prod(1.0 - np.minimum(1.0, fails_w)))


def _with_all(trial: Trial, seconds: Float, small: Plan, sample: Futures, part: Futures) -> Float:
    """Scale the times of a sample to the whole fleet; without replicas the slowest client decides."""
    if trial.setting.replicas > 1 or small.clients == trial.plan.clients:
        return seconds
    all_b, few_b = cover_s(trial.plan, sample)[0], cover_s(small, part)[0]
    both = np.isfinite(all_b) & np.isfinite(few_b)
    return seconds * max(1.0, float(all_b[both].mean() / few_b[both].mean())) if both.any() else seconds


def _plainest(trials: Sequence[Trial], times_tb: Float, score_t: Float) -> int:
    best = int(np.argmin(score_t))
    gaps_tb = times_tb - times_tb[best]
    chance_t = gaps_tb.std(axis=1) / np.sqrt(gaps_tb.shape[1])
    least_t = np.maximum(np.minimum(chance_t, INDIFFERENT * score_t[best]), SAME * score_t[best])
    near = np.flatnonzero(score_t - score_t[best] <= least_t)
    return min(near.tolist(), key=lambda t: (trials[t].setting.replicas, trials[t].setting.blocks or 1, t))


def _chosen(
    question: Question,
    held: tuple[Belief, ClientHistory],
    trial: Trial,
    seconds: Float,
    scores: Sequence[tuple[str, float]],
    *,
    stays: bool,
) -> Choice:
    belief, history = held
    band = band_of(seconds.tolist(), history.ratios)
    correction = band.expected_s / float(seconds.mean())
    rows = telling_rows(belief, history)
    telling = [row.words for row in rows if belief.trusted or row.fails >= OFTEN]
    because = f", because of {'; '.join(telling)}" if telling else ""
    scores = [(words, score * correction) for words, score in scores]
    others = [(words, score) for words, score in scores if words != trial.setting.words]
    beside = f" against {others[0][1]:.3g} s with {others[0][0]}" if others else ""
    kept = "kept: " if stays else ""
    return Choice(
        trial.setting,
        trial.speeds,
        _deadline_s(question, trial.plan, belief, correction),
        band,
        trusted=belief.trusted,
        known=True,
        reason=f"{kept}{trial.setting.words}: {band.expected_s:.3g} s predicted{beside}; "
        f"{belief.words}{because}",
        rows=rows,
        scores=tuple(scores),
        replayed_s=tuple(seconds.tolist()),
    )


def _deadline_s(question: Question, plan: Plan, belief: Belief, correction: float) -> float:
    """Return a high quantile of the slowest clients' time, with slack; not less for a correction below 1."""
    futures = Futures(*belief.draw(4 * SCREENED, np.random.default_rng(question.config.seed)))
    ends_b = cover_s(plan, futures)[0]
    ends_b = ends_b[np.isfinite(ends_b)]  # waiting does not help if all holders died
    least_s = DEAF_DEADLINE_S if question.fleet.deaf else LEAST_DEADLINE_S
    if not ends_b.size:
        return least_s
    slack = DEADLINE_SLACK * max(1.0, correction)
    return max(least_s, slack * float(np.quantile(ends_b, DEADLINE_QUANTILE)))


def telling_rows(belief: Belief, history: ClientHistory) -> tuple[Evidence, ...]:
    """Return the clients farthest from the median, and those that fail."""
    middle = float(np.median(belief.step_w))
    far_w = np.abs(np.log(belief.step_w / middle))
    worst = np.argsort(-(far_w + belief.fails_w), kind="stable")[:NAMED].tolist()
    return tuple(
        Evidence(
            belief.clients[w],
            float(belief.step_w[w]),
            float(belief.step_w[w] / middle),
            float(belief.fails_w[w]),
            belief.rounds_w[w],
            history.seen(w),
        )
        for w in worst
        if far_w[w] >= np.log(FAR) or belief.fails_w[w] >= OFTEN
    )
