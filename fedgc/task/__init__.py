"""What is trained: the `Task` a user writes, and the tasks that are shipped."""

from fedgc.task.find import SHIPPED, named
from fedgc.task.task import Task

__all__ = ["SHIPPED", "Task", "named"]
