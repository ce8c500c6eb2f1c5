"""What `tasks_lib` is made of: settings, schedules of tasks, early stopping."""
