"""What is trained: the `Task` a user writes, ways to make one, and the tasks that are shipped."""

from fedgc.training.tasks.dataset import over
from fedgc.training.tasks.find import SHIPPED, named
from fedgc.training.tasks.lightning import from_lightning
from fedgc.training.tasks.task import Task

__all__ = ["SHIPPED", "Task", "from_lightning", "named", "over"]
