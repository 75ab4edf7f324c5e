"""What is trained: the `Task` a user writes, ways to make one, and the tasks that are shipped."""

from fedgc.task.dataset import over
from fedgc.task.find import SHIPPED, named
from fedgc.task.lightning import from_lightning
from fedgc.task.task import Task

__all__ = ["SHIPPED", "Task", "from_lightning", "named", "over"]
