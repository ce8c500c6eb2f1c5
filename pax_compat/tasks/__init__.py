"""Settings of tasks, task schedules, and early stopping, for `tasks_lib`."""
