"""`fedgc.join`: a training script of any form takes part in a federation, and every finished step counts.

Local SGD with partial work (FedAvg, McMahan et al. 2017; partial steps as in FedProx, Li et al. 2020), where
a step is whatever the script does between two calls: gradient accumulation, mixed precision, several losses
and optimizers are its own business. Between two steps the script can be interrupted: it hands in the steps
that are done, and goes on from the next common model.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import BadTask, EdgeFailed, FedgcError
from fedgc.files import SHARED, whole
from fedgc.training.devices import GPU_SHARE, limit_memory
from fedgc.training.figures import scored
from fedgc.training.flat import Vector
from fedgc.training.loop.environment import ANEW, ScriptEnvironment, imports_anew
from fedgc.training.loop.forks import handle_sigterm, leave_at_exit
from fedgc.training.loop.leader import ENDED, NUMBERS, Action, ClientEnded, Do, Leader, end_in_one_line
from fedgc.training.loop.losses import loss_number
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks, is_first
from fedgc.training.loop.samples import Counted, samples_of, total_samples
from fedgc.training.lora_ranks import common_rank

Batch = TypeVar("Batch")
Validate = Callable[[nn.Module], Mapping[str, float]]

STATE_FILE: Final = "script.pt"  # private tensors and the optimizer's state, in the client's folder
ALONE: Final = "fedgc: no client has started this script, so it trains by itself\n"


def join(
    model: nn.Module,
    *,
    validate: Validate | None = None,
    samples: int | None = None,
    private: Sequence[str] = (),
    optimizer: torch.optim.Optimizer | None = None,
) -> "TrainingLoop":
    """Make this script take part in the federation whose client has started it.

    Outside a federation nothing changes: `steps` passes once over the loader, and `step` returns True.

    Args:
        model: The module that is trained; it may be wrapped in DistributedDataParallel or torch.compile, or
            sharded by `fully_shard`. Its trainable parameters and floating-point buffers are exchanged.
            Frozen parameters must be equal on all clients. In a federation, optimizers step on float32
            copies of parameters of half precision.
        validate: Scores a common model on data of this client: `validate(model)` returns figures by name. It
            is called in evaluation mode and without gradients. A figure `samples` weighs the others.
        samples: How many samples this client trains on, in total over all its processes. Its update is
            weighted by it. By default the length of the loader's dataset, or of its subset with a
            `SubsetRandomSampler`. With several processes, a dataset that the loader divides among them
            (`DistributedSampler`, Accelerate) is counted once; without that each process has data of its
            own, and the lengths are added.
        private: Names of tensors that stay on this client, as patterns (`["head.*", "*.bn.*"]`). Frozen
            tensors that match may differ from those of other clients.
        optimizer: Its state is kept when the script or its client leaves or the server ends, and loaded when
            the script is started again. All processes get that of rank 0; with `fully_shard` it is not kept.

    Returns:
        The training loop, to be asked for steps.

    Raises:
        BadTask: The model cannot be exchanged, a pattern matches nothing, or `join` was called before.

    Example:
        fed = fedgc.join(model)
        for batch in fed.steps(loader):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    environment = ScriptEnvironment.read(os.environ)
    state = ModelState(model, private)
    try:
        samples = None if samples is None else int(samples)  # numpy's and torch's numbers cannot travel
    except (TypeError, ValueError) as error:
        raise BadTask(f"fedgc.join: saw samples={samples!r}, needed a whole number") from error
    if samples is not None and samples < 1:
        raise BadTask(f"fedgc.join: saw samples={samples}, needed at least 1")
    if optimizer is not None and not hasattr(optimizer, "state_dict"):
        raise BadTask(f"fedgc.join: saw a {type(optimizer).__name__} as optimizer, needed one of torch's")
    if environment is None or environment.is_inherited:
        sys.stderr.write(ALONE)
        return TrainingLoop(state, None, None, samples, validate, optimizer)
    if environment.joined == os.getpid():
        raise BadTask("fedgc.join: saw a second call in this process, needed one")
    environment.join()
    limit_memory(float(environment.client.get(GPU_SHARE, 1.0)))
    if is_first() or state.sharded:
        state.bind(common_rank(environment.config()))
    state.step_in_float32()
    leader = Leader(environment) if is_first() and not imports_anew() else None
    loop = TrainingLoop(state, environment, leader, samples, validate, optimizer)
    leave_at_exit(loop.hand_over)
    end_in_one_line()
    return loop


class TrainingLoop:
    """A script's place in a federation, made by `fedgc.join`."""

    def __init__(
        self,
        state: ModelState,
        environment: ScriptEnvironment | None,
        leader: Leader | None,
        samples: int | None,
        validate: Validate | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._state = state
        self._environment = environment
        self._leader = leader  # on rank 0 of a script in a federation
        self._samples = samples
        self._how_counted = Counted.GIVEN
        self._validate = validate
        self._optimizer = optimizer
        self._ranks: Ranks | None = None  # known at the first step, when the process group is there
        self._place = Action(Do.STEP)
        self._steps = 0  # since the common model; outside a federation since the start
        self._epoch: int | None = None  # of the last pass over a loader
        self._is_stepping = False  # `step` was called, outside a federation
        self._at_break: Vector | None = None  # the model of a loop that was left, until the next step
        self._ended = False
        self._settings = RunConfig() if environment is None else environment.config()
        self._client = MappingProxyType(dict(environment.client) if environment else {})

    # ---- where the run is

    @property
    def joined(self) -> bool:
        """Whether a client has started this script."""
        return self._environment is not None

    @property
    def round(self) -> int:
        """The number of the present round; 0 before the first, and outside a federation."""
        return self._place.round

    @property
    def version(self) -> int:
        """The version of the common model that training started from; 0 outside a federation."""
        return self._place.version

    @property
    def global_step(self) -> int:
        """Local steps of the run so far, for learning-rate schedules; outside a federation the script's own.

        With each exchange it becomes the number of rounds so far times `settings.round_steps`, and it grows
        with each step of this client. A client may train more steps than the run counts, and then falls back
        at an exchange. Outside a federation, `steps` and `step` count.
        """
        return self._place.first_step + self._steps

    @property
    def settings(self) -> RunConfig:
        """The run's settings (`fedgc.RunConfig`); outside a federation the defaults.

        `settings.rounds` and `settings.round_steps` say how long the run lasts.
        """
        return self._settings

    @property
    def client(self) -> Mapping[str, str | int | float]:
        """This client's own settings (its node config), such as paths of its data."""
        return self._client

    # ---- steps

    def steps(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches until the run is over, passing over the loader as often as needed.

        Between two batches the step is counted, and the model handed in and replaced when the round asks for
        it. Outside a federation it passes once over the loader.

        Args:
            loader: Anything that can be iterated several times. If it has a `sampler.set_epoch`, that is
                called before each pass but the first, unless the script has called it itself.

        Raises:
            BadTask: The loader is empty, or the number of samples is unknown.
        """
        if not self.joined:
            yield from self._alone(loader)
            return
        if self._samples is None:
            self._samples, self._how_counted = samples_of(loader)
        try:
            yield from self._passes(loader)
        except GeneratorExit:
            self._break()
            raise

    def _passes(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        if not self.step():
            return
        had_batches = False
        while True:
            self._epoch = _next_epoch(loader, self._epoch)
            batch = _NOTHING
            for batch in loader:
                yield batch
                if not self.step():
                    return
            if batch is _NOTHING:
                seen, needed = ONCE if had_batches else NO_BATCH
                raise BadTask(f"steps: saw a loader {seen}, needed {needed}")
            had_batches = True

    def _break(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        """Keep the model of a loop that was left: what a script that goes on does to it is its own."""
        if self._leader is not None and not at_exit() and not self._state.sharded:
            self._at_break = np.empty_like(self._leader.trained)
            self._state.read(self._at_break)

    def _alone(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Pass once over the loader, outside a federation."""
        for batch in loader:
            yield batch
            self._steps += 1

    def step(self) -> bool:
        """Count the step that was done since the last call; return whether to train another.

        The first call waits for the common model and counts nothing. Outside a federation it returns True.
        """
        if not self.joined:
            self._steps += self._is_stepping
            self._is_stepping = True
            return True
        if self._ended:
            return False
        self._at_break = None
        if self._ranks is None:
            self._ranks = Ranks()
            self._announce(self._ranks)
        else:
            self._steps += 1
            if self._leader is not None:
                self._leader.count_step()
        return self._proceed(self._ranks)

    def log(self, *, loss: float | torch.Tensor) -> None:
        """Report the loss of the present step; the round's row shows the mean.

        With several processes, the losses of rank 0 count. Reading a loss from a GPU waits for the step.

        Args:
            loss: The loss of this step, as a number or a tensor with one element.
        """
        if self._leader is not None and self._ranks is not None and not self._ended:
            self._leader.log_loss(loss_number(loss))

    def leave(self) -> None:
        """Ask to leave the run: the next step hands in the steps that are done, and ends the loop.

        The call returns at once, and is safe in a signal handler: `steps` ends at its next batch, and `step`
        returns False. A client that has left takes no part in later rounds. With several processes, the call
        of rank 0 counts. Use `hand_over` where no further step follows.
        """
        if self._leader is not None:
            self._leader.leave()

    def hand_over(self, *, together: bool = False) -> None:
        """Leave the run at once: hand in the steps that are done before the call returns.

        For callbacks of a trainer that has ended its training, and for a loop that was left, before the
        script restores other weights. A step that is not over is not counted. Within a loop, call `leave`.
        fedgc itself calls it when the script ends before the run does.

        Args:
            together: Whether all ranks make this call, so that a sharded model is gathered too. By default
                rank 0 hands in without the other ranks, which may have ended; a sharded model is then not
                handed in.
        """
        leader, ranks = self._leader, self._ranks
        if ranks is None or self._ended:
            return
        if together:
            self.leave()
            self._proceed(ranks)
        elif leader is not None and not (ranks.several and self._state.sharded):
            leader.leave(at_exit=True)
            self._hand_in(Do.LEAVE)

    def prepare(self, loader: object, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Take from a trainer what `join` was not told; call it before the first step.

        For callbacks of a trainer, which makes the loader and the optimizer after `join`.

        Args:
            loader: The trainer's loader. Its dataset gives the number of samples.
            optimizer: The trainer's optimizer, whose state is kept when the script is stopped.

        Raises:
            BadTask: The number of samples is unknown, and the loader has no dataset of known length.
        """
        if self._samples is None:
            if not isinstance(getattr(loader, "dataset", None), Sized):
                raise BadTask(
                    f"fedgc: saw a {type(loader).__name__} without one dataset of known length, needed "
                    "fedgc.join(samples=...)"
                )
            self._samples, self._how_counted = samples_of(loader)
        if self._optimizer is None:
            self._optimizer = optimizer

    # ---- what all ranks do

    def _proceed(self, ranks: Ranks) -> bool:
        """Do what the client asks for, until there is a step to train or the run is over."""
        while (action := self._next(ranks)).do != Do.STEP:
            self._act(action, ranks)
            if self._ended:
                return False
        self._place = action
        return True

    def _next(self, ranks: Ranks) -> Action:
        return self._agreed(ranks, Leader.next)

    def _agreed(self, ranks: Ranks, lead: Callable[[Leader], Action]) -> Action:
        """Return what rank 0's leader decides; if it fails, all ranks do."""
        if self._leader is None:
            return Action.of(ranks.agree((0,) * NUMBERS))
        try:
            action = lead(self._leader)
        except ClientEnded:
            self._fail(ranks, Do.STOP)
            if not self._state.sharded:
                self._keep(with_optimizer=True)
            raise
        except FedgcError:
            self._fail(ranks, Do.FAIL)
            raise
        return Action.of(ranks.agree(action.numbers()))

    def _fail(self, ranks: Ranks, do: Do) -> None:
        with suppress(RuntimeError):  # the other ranks are gone
            ranks.agree(Action(do).numbers())

    def _announce(self, ranks: Ranks) -> None:
        if self._leader is None and is_first():
            raise BadTask(ANEW)
        if self._samples is None:
            raise BadTask("fedgc.join: needed samples=..., as only `steps` can count a loader's samples")
        self._samples = total_samples(ranks.gather((self._samples, self._how_counted)))
        self._restore(ranks)
        self._act(self._agreed(ranks, self._announced), ranks)
        if self.joined:
            _leave_at_sigterm(self)

    def _announced(self, leader: Leader) -> Action:
        leader.announce(self._state.layout, self._samples or 0, validates=self._validate is not None)
        return Action(Do.ANNOUNCE)

    def _act(self, action: Action, ranks: Ranks) -> None:
        leader = self._leader
        match action.do:
            case Do.ANNOUNCE:
                self._show_model()
            case Do.LOAD:
                self._state.write(leader.common if leader else None, ranks)
                self._place = action
                self._steps = action.steps
            case Do.VALIDATE:
                self._score(action.version)
            case Do.READ | Do.HAND_IN:
                self._hand_in(action.do)
            case Do.LEAVE:
                ranks.gather((self._steps,))  # an error if torchrun asks to end because a rank has died
                self._hand_in(action.do)
            case Do.END:
                self._end()
            case Do.STOP | Do.FAIL:
                stops = action.do == Do.STOP
                raise ClientEnded(ENDED) if stops else EdgeFailed("fedgc: rank 0 has lost its client")

    def _show_model(self) -> None:
        self._state.read(self._leader.trained if self._leader else None)
        if self._leader is not None:
            self._leader.ready()

    def _hand_in(self, do: Do) -> None:
        if self._at_break is not None and self._leader is not None:
            np.copyto(self._leader.trained, self._at_break)
        else:
            self._state.read(self._leader.trained if self._leader else None)
        if self._state.private or do == Do.LEAVE:
            self._keep(with_optimizer=do == Do.LEAVE)
        if self._leader is not None:
            self._leader.handed_in(do)
        if do == Do.LEAVE:
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._leader is not None:
            self._leader.close()

    def _score(self, version: int) -> None:
        validate = self._validate
        if validate is None:
            return
        module = self._state.undistributed
        modes = [(each, each.training) for each in module.modules()]  # some may be in evaluation mode
        try:
            with torch.no_grad():
                event = scored(version, lambda: validate(module.eval()), self._samples or 1)
        finally:
            for each, mode in modes:
                each.training = mode
        if self._leader is not None:
            self._leader.scored(event)

    # ---- what outlives the script

    def _restore(self, ranks: Ranks) -> None:
        environment = self._environment
        kept: dict[str, Any] = {}
        path = environment.folder / STATE_FILE if environment else Path()
        if is_first() and path.is_file():
            with suppress(Exception):  # torch raises half a dozen kinds for a damaged file
                kept = torch.load(path, map_location="cpu", weights_only=True)
        if self._state.private:
            self._state.write_private(kept.get("private", {}), ranks)
        if self._optimizer is None or self._state.sharded:
            return
        state = ranks.share(kept.get("optimizer"))
        if state:
            with suppress(ValueError, KeyError):  # of another model
                self._state.load_optimizer(self._optimizer, state)
            self._keep(with_optimizer=False)  # it is old once a step is done: a crash begins anew

    def _keep(self, *, with_optimizer: bool) -> None:
        environment = self._environment
        private = self._state.read_private() if self._state.private else {}
        if environment is None or self._leader is None:
            return
        content: dict[str, Any] = {"private": private}
        if with_optimizer and self._optimizer is not None and not self._state.sharded:
            content["optimizer"] = self._optimizer.state_dict()
        path = environment.folder / STATE_FILE
        with suppress(OSError, RuntimeError):  # a full disk costs what would have been kept
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with whole(path, SHARED) as part:
                torch.save(content, part)


class _Nothing:
    """No batch."""


_NOTHING: Final[Any] = _Nothing()
NO_BATCH: Final = ("without a batch", "at least one")
ONCE: Final = ("that can be passed over once", "one such as a DataLoader")


def _next_epoch(loader: object, last: int | None) -> int | None:
    """Return the epoch of the next pass; set it, unless the script has set another since the last pass."""
    found: list[Any] = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers = [each for each in found if hasattr(each, "set_epoch")]
    own = next((each.epoch for each in samplers if isinstance(getattr(each, "epoch", None), int)), None)
    if last is None or (own is not None and own != last):
        return own or 0
    for each in samplers:
        each.set_epoch(last + 1)
    return last + 1


def _leave_at_sigterm(loop: TrainingLoop) -> None:
    """Hand in what is done when the process is asked to end, unless the script handles the signal itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process
        loop.leave()

    handle_sigterm(leave)
