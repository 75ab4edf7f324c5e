"""The Trainer of transformers in a federation: a callback that steps, hands in and ends with the run.

It serves every Trainer that calls the callbacks of transformers, TRL's SFTTrainer among them.
"""

import sys
from typing import TYPE_CHECKING, Any, Final

from transformers import (
    DefaultFlowCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from fedgc.errors import BadTask

if TYPE_CHECKING:
    from fedgc.training.loop.training_loop import TrainingLoop

ENDLESS: Final = 10**9  # optimizer steps: the run ends the training, not the Trainer
ENDS_EARLY: Final = (
    "fedgc.hf.Callback: the Trainer ends after {} steps, and then this client leaves the run; "
    "give the callback to Trainer(callbacks=[...]) instead of add_callback\n"
)
BEST_OF_EPOCHS: Final = (
    "fedgc.hf.Callback: saw load_best_model_at_end with save_strategy=best and eval_strategy=epoch, needed "
    "save_strategy=epoch: if the training stops early, the model is handed in before the best one is loaded"
)
SHARES: Final = ("warmup_steps", "logging_steps", "eval_steps", "save_steps")  # below 1: of all steps


class Callback(TrainerCallback):
    """Lets a transformers `Trainer` take part in a federation.

    A step is one optimizer step, whatever number of batches it accumulates. After each, the callback hands in
    the model if the round asks for it, and writes the next common model into the module. The Trainer's own
    logging, evaluation and checkpoints go on. In a federation the training ends with the run: `max_steps` and
    `num_train_epochs` hold outside only, where the callback counts steps for `fed.global_step`.

    Args:
        fed: What `fedgc.join(model)` returned.

    Example:
        fed = fedgc.join(model)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[fedgc.hf.Callback(fed)])
        trainer.train()
    """

    def __init__(self, fed: "TrainingLoop") -> None:
        self._fed = fed
        if not fed.joined:
            fed.step()  # the first call counts nothing

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Lift the Trainer's own limit, which it reads before `on_train_begin`."""
        if not self._fed.joined:
            return
        for name in SHARES:
            value = getattr(args, name, None)
            if isinstance(value, float) and 0 < value < 1:
                raise BadTask(
                    f"fedgc.hf.Callback: saw {name}={value}, a share of the Trainer's own steps; needed a "
                    "number of steps, as the run ends the training"
                )
        if args.load_best_model_at_end and args.save_strategy == "best" and args.eval_strategy == "epoch":
            raise BadTask(BEST_OF_EPOCHS)  # no callback is called between the last evaluation and the load
        args.max_steps = ENDLESS

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: Any,  # noqa: ANN401  as transformers passes them
    ) -> None:
        """Wait for the first common model."""
        if not self._fed.joined:
            return
        if state.max_steps < ENDLESS:
            sys.stderr.write(ENDS_EARLY.format(state.max_steps))
        else:  # for the progress bar, which reads it next
            state.max_steps = self._fed.settings.rounds * self._fed.settings.round_steps
        self._fed.prepare(others["train_dataloader"], others["optimizer"])
        if not self._fed.step():
            control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Lift the limit again, which the progress bar has read."""
        if args.max_steps == ENDLESS:
            state.max_steps = ENDLESS

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Count an optimizer step; at the end of the run let the Trainer end as at its own limit."""
        if not self._fed.step():
            state.max_steps = state.global_step
            DefaultFlowCallback().on_step_end(args, state, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Report the loss that the Trainer logs: the mean since it has logged last."""
        if logs and "loss" in logs:
            self._fed.log(loss=logs["loss"])
        if logs and self._fed.joined and "train_samples_per_second" in logs:  # of ENDLESS steps
            samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            per_second = round(state.global_step / logs["train_runtime"], 3)
            logs["train_steps_per_second"] = per_second
            logs["train_samples_per_second"] = samples * per_second
            state.log_history[-1].update(logs)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Hand in what is done if the training stops, before the Trainer loads an earlier model.

        `EarlyStoppingCallback` stops it, and needs `load_best_model_at_end`.
        """
        if control.should_training_stop:
            self._fed.hand_over(together=True)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Do the same where the training stops at the evaluation before."""
        self.on_evaluate(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Do the same where the training stops within an epoch."""
        self.on_evaluate(args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Hand in what is done, if something else has ended the training before the run is over."""
        self._fed.hand_over(together=True)
