"""The modes in which an input or a task runs: `paxml.trainer_lib`."""

from pax_compat.tasks.early_stopping import RunningMode

__all__ = ['RunningMode']
