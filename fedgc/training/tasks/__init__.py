"""Training tasks: the `Task` that a user writes, functions that make one, and the shipped tasks."""

from fedgc.training.tasks.dataset import over
from fedgc.training.tasks.find import SHIPPED, must_be_task, named
from fedgc.training.tasks.lightning import from_lightning
from fedgc.training.tasks.task import Task

__all__ = ["SHIPPED", "Task", "from_lightning", "must_be_task", "named", "over"]
