"""The local loop of a training script: follows the steps that the script counts, and tells it what is next.

The script's process lives as long as the client's session. If it ends, that is a failure of the client in
that round: the next work starts it again, from the common model.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from fedgc.errors import BadMessage, EdgeFailed, TaskFailed
from fedgc.fragments import mix
from fedgc.guards import guarded
from fedgc.messages import LARGEST_AMOUNT, LARGEST_COUNT, Held, Layout, Scored, Work
from fedgc.training.cache import Saved
from fedgc.training.flat import Vector
from fedgc.training.local_loop import Advance, Begin, LocalLoop
from fedgc.training.loop.shared_vectors import GENERATION, LOGGED, LOSSES, SECONDS, STEPS, SharedVectors
from fedgc.training.script.connection import END_S, STOP_S, ScriptConnection, ScriptFacts

POLL_S: Final = 0.01  # between two looks at the script's counters; a command ends it early
HAND_IN_S: Final = 10.0  # that a session's end waits at least for the script's present step
HAND_IN_STEPS: Final = 2.0  # the same, in measured times of a step
MOST_SCORES: Final = 64  # models whose figures wait to be sent
HAS_LEFT: Final = "the script has left the run"
LONGEST_REASON: Final = 400  # characters of what is wrong with a line


class ScriptLoop(LocalLoop):
    """Drives one script, which it starts again after a failure."""

    def __init__(self, facts: ScriptFacts, wait: Callable[[float], object]) -> None:
        """`wait` waits for so many seconds, or less if a command comes."""
        self._facts = facts
        self._wait = wait
        self.is_costly = facts.is_site
        self._script = ScriptConnection(facts)
        self._memory: SharedVectors | None = None
        self._layout: Layout | None = None
        self._samples = 0
        self._is_known = False  # this process of the script, or one before it, has announced its model
        self._begin: Begin | None = None  # to be told to the script once it is ready
        self._work: Work | None = None
        self._seen = 0  # steps of the script that were returned by `advance`
        self._seen_s = self._step_s = 0.0  # the latter of one step, no more than really passed
        self._seen_at = 0.0  # when steps were returned last, or training began
        self._read_at: int | None = None  # the step at which the script has read its model last
        self._generation = self._ask = 0  # of the last commands to train from a model, and to hand in
        self._asks = self._handed = self._left = self._at_exit = False
        self._is_trained = False  # it came with a model that is trained already, as a site's that is resumed
        self._failure = ""
        self._scores: list[Scored] = []
        self._validates = False  # the script has a function for that
        self._to_validate: tuple[int, Vector] | None = None
        self._resting = False

    # ---- what is trained

    @property
    def has_left(self) -> bool:
        """Whether the script has left the run; if it hands in at its exit, its exit status decides."""
        return self._left and not (self._at_exit and self._script.is_running)

    @property
    def layout(self) -> Layout | None:
        """The layout that the script announced, also while it is started again; looks for it before."""
        if not self._is_known:
            self._turn()
            self._raise_failure()
        return self._layout if self._is_known else None

    @property
    def sizes(self) -> Mapping[str, int]:
        """The client's data is one chunk, named after the client."""
        return {self._facts.client: self._samples} if self._samples else {}

    def holds(self) -> tuple[Held, ...]:
        """Return the one chunk."""
        return tuple(Held(name, samples) for name, samples in self.sizes.items())

    def initial(self) -> Vector:
        """Return the model as the script made it; before any training only."""
        if self._is_trained:
            raise BadMessage("saw a request for the first model, and this one is trained already")
        vector: Vector = self._vectors.trained.copy()
        return vector

    # ---- training

    def begin(self, begin: Begin) -> None:
        """Have the script train from a model; the script is started again if it has ended."""
        if self.has_left:
            raise TaskFailed(HAS_LEFT)
        self._begin, self._work = begin, begin.work
        self._failure, self._resting = "", False
        self._tell()

    def merge(self, begin: Begin, parts: Sequence[slice], own: float) -> None:
        """Have the script go on from its own model with these parts; its optimizer keeps its state."""
        for part in parts:
            mix(self._vectors.trained, begin.model, part, own)
        self.begin(replace(begin, saved=self.saved()))

    def go_on(self, work: Work) -> None:
        """Let the script train on."""
        self._work = work
        self._asks = self._handed = self._resting = False
        if self._begin is not None:
            self._begin = replace(self._begin, work=work)
            self._tell()
        else:
            self._train(work, load=False)

    def advance(self, reached: int, goal: int) -> Advance | None:
        """Return the steps that the script has counted; if some are wanted, wait a moment for them."""
        self._turn()
        if (new := self._counted(reached)) is None and reached < goal and not self._failure:
            self._wait(POLL_S)
            self._turn()
            new = self._counted(reached)
        if new is None and reached < goal:
            self._raise_failure()
        return new

    def vector(self) -> Vector | None:
        """Return the model that the script has read at the target."""
        return self._vectors.trained if self._read_at is not None else None

    def hand_in(self, *, wait: bool = False) -> Vector | None:
        """Ask the script for its model, and return it once it is there."""
        if not self._asks and not self._left:
            self._asks = True
            self._ask += 1
            self._script.say("hand-in", ask=self._ask)
        end = time.monotonic() + (max(HAND_IN_S, HAND_IN_STEPS * self._step_s) if wait else 0.0)
        self._turn()
        while not self._has_handed_in:
            self._raise_failure()
            self._wait(POLL_S)
            self._turn()
            if time.monotonic() >= end:
                break
        return self._vectors.trained if self._has_handed_in else None

    @property
    def _has_handed_in(self) -> bool:
        """Whether the script's model is there; one that has left never begins what it is told next."""
        return self._handed or (self._left and self._begin is None)

    def saved(self) -> Saved:
        """Return the model that the script has handed in; its optimizer stays in the script."""
        return Saved(self._vectors.trained, [], {})

    @property
    def scores_models(self) -> bool:
        """Whether the script has a function for that."""
        return self._validates

    def validate(self, version: int, model: Vector) -> bool:
        """Have the script score a model, before it trains or without training."""
        self._to_validate = (version, model) if self._validates or not self._script.is_ready else None
        return self._to_validate is not None

    def scores(self, *, wait: bool) -> tuple[Scored, ...]:
        """Return the figures that the script has sent."""
        self._turn()
        if self._to_validate is not None and self._script.is_ready and self._begin is None and wait:
            version, model = self._to_validate
            self._to_validate = None
            self._vectors.common[:] = model
            self._script.say("validate", version=version, first_step=_first_step(self._work, version))
        if wait and not self._scores:
            self._raise_failure()
            self._wait(POLL_S)
            self._turn()
        scores, self._scores = tuple(self._scores), []
        return scores

    def rest(self) -> None:
        """Have the script wait."""
        if not self._resting:
            self._resting = True
            self._script.say("rest")

    def close(self, *, complete: bool = False) -> None:
        """End the script: by itself if the run is complete, else at once."""
        self._script.say(
            "end", complete=complete, reason="the run is over" if complete else "the session has ended"
        )
        self._script.close(END_S if complete else STOP_S)
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    # ---- turns

    def _turn(self) -> None:
        """Do what there is to do, without waiting."""
        script = self._script
        if not (script.is_running or self._left or self._failure):
            script.start()
        try:
            with guarded("a line of the script", error=BadMessage):
                if script.accept_again():
                    self._failure = self._failure or "the launcher has started the script's processes again"
                for message in script.lines():
                    self._heard(message)
        except BadMessage as error:
            self._fail(f"the script: {error}"[:LONGEST_REASON])
        except EdgeFailed:
            script.disconnect()
        if script.is_running and not script.is_connected:
            self._look_after(script)

    def _look_after(self, script: ScriptConnection) -> None:
        """Look whether a script that is not connected has ended: unless it has left, that is a failure."""
        if script.has_ended:
            status, why = script.reap()
            if self._at_exit and status:
                self._left = False  # it handed in at its exit, but it has failed
            if not self._left:
                self._fail(why)
            elif self._begin is not None:
                self._fail(HAS_LEFT)
        elif script.overdue and not self._left:
            self._fail(script.overdue)

    def _heard(self, message: Mapping[str, Any]) -> None:
        """Take in a line of the script; raise BadMessage if it is not of this protocol."""
        handler = {
            "announce": self._announced,
            "ready": self._made_ready,
            "reached": self._reached,
            "handed": self._handed_in,
            "left": self._has_left,
            "scored": self._scored,
        }.get(message["kind"])
        if handler is None:
            raise BadMessage(f"saw {message['kind']!r}, which this version does not know")
        try:
            handler(message)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadMessage(f"{message['kind']}: saw {error} missing or of another type") from error

    def _made_ready(self, _: Mapping[str, Any]) -> None:
        if self._memory is None:
            raise BadMessage("ready: saw no model before it, needed one")
        self._script.is_ready = self._is_known = True
        self._tell()

    def _reached(self, message: Mapping[str, Any]) -> None:
        if message["generation"] == self._generation:
            self._read_at = int(message["steps"])

    def _handed_in(self, message: Mapping[str, Any]) -> None:
        self._handed = self._handed or (self._asks and message["ask"] == self._ask)

    def _has_left(self, message: Mapping[str, Any]) -> None:
        if not self._script.is_ready:
            raise BadMessage("left: saw no model before it, needed one")
        self._left, self._script.is_ready = True, False
        self._at_exit = bool(message["at_exit"])

    def _announced(self, message: Mapping[str, Any]) -> None:
        layout, samples = Layout.of(message), int(message["samples"])
        if refused := self._refusal(layout, samples):
            self._script.say("refused", reason=refused)
            return
        Held(self._facts.client, samples)  # or a BadMessage
        try:
            self._memory = self._memory or SharedVectors.create(layout.size)
        except EdgeFailed as error:
            self._script.say("refused", reason=str(error))
            return
        self._layout, self._samples = layout, self._samples or samples  # those of a session stay
        self._validates, self._is_trained = bool(message.get("validates")), bool(message.get("trained"))
        if not self._script.is_ready:
            self._script.give(self._memory)

    def _refusal(self, layout: Layout, samples: int) -> str:
        """Return why this model is refused; empty if it is not."""
        if self._layout is not None and (difference := self._layout.difference(layout)):
            return f"the model differs from the one announced first: {difference}"
        if samples < 1:
            return f"saw {samples} samples, needed at least 1"
        return ""

    def _tell(self) -> None:
        """Tell the script to begin, once it is ready."""
        begin = self._begin
        if begin is None or not self._script.is_ready or self._resting:
            return
        self._begin = None
        self._vectors.common[:] = begin.saved.vector if begin.saved is not None else begin.model
        self._seen, self._seen_s, self._seen_at = begin.reached, 0.0, time.monotonic()
        self._read_at = None
        self._asks = self._handed = False
        self._generation += 1
        self._train(begin.work, load=True, steps=begin.reached)

    def _train(self, work: Work, *, load: bool, steps: int = 0) -> None:
        validates = load and self._to_validate is not None and self._to_validate[0] == work.version
        if validates:
            self._to_validate = None
        self._script.say(
            "train",
            round=work.round,
            version=work.version,
            first_step=work.first_step,
            steps=steps,
            target=work.target,
            limit=max(work.target, work.most_steps),
            reads_at_target=self._facts.config.measure == "distance",
            load=load,
            generation=self._generation,
            validate=validates,
        )

    def _counted(self, reached: int) -> Advance | None:
        """Return what the counters tell; the step of the target counts once the model was read there."""
        if self._memory is None or self._work is None or self._begin is not None:
            return None
        counts, sums = self._memory.counts, self._memory.sums
        if int(counts[GENERATION]) != self._generation:
            return None  # the script has not taken in the last command yet
        steps, seconds = int(counts[STEPS]), float(sums[SECONDS])
        if not (steps <= LARGEST_COUNT and seconds <= LARGEST_AMOUNT):
            seen = f"saw {steps} steps in {seconds:g} s in its counters"
            self._fail(f"the script: {seen}, needed at most {LARGEST_COUNT:g} in {LARGEST_AMOUNT:g} s")
            return None
        awaited = self._facts.config.measure == "distance" and not self._left
        if awaited and steps >= self._work.target and (self._read_at or 0) < self._work.target:
            steps = min(steps, self._work.target - 1)
        new = steps - max(self._seen, reached)
        if new <= 0:
            return None
        logged = int(counts[LOGGED])
        losses = float(sums[LOSSES]) / logged * new if logged else 0.0
        advance = Advance(new, max(0.0, seconds - self._seen_s), losses)
        now = time.monotonic()
        self._step_s = min(advance.seconds, now - self._seen_at) / new
        self._seen, self._seen_s, self._seen_at = steps, seconds, now
        return advance

    def _scored(self, message: Mapping[str, Any]) -> None:
        figures = tuple((str(name), float(value)) for name, value in message["figures"].items())
        version, samples = int(message["version"]), int(message["samples"])
        problem = str(message["problem"])
        self._scores.append(Scored(0.0, self._facts.client, version, samples, figures, problem))
        del self._scores[:-MOST_SCORES]

    # ---- ends

    @property
    def _vectors(self) -> SharedVectors:
        if self._memory is None:
            raise TaskFailed("the script has announced no model")
        return self._memory

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._script.end()

    def _raise_failure(self) -> None:
        if self._failure:
            failure, self._failure = self._failure, ""
            raise TaskFailed(failure)


def _first_step(work: Work | None, version: int) -> int:
    """Return the local steps of the run before this model: the exchange has ended the last work."""
    if work is None:
        return 0
    return work.first_step + (work.target if version > work.version else 0)
