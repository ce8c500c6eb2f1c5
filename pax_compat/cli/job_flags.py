"""Flags of every program that works in the folder of a run."""

from absl import flags

JOB_LOG_DIR = flags.DEFINE_string(
  'job_log_dir',
  None,
  'Folder of the run: checkpoints, summaries, metrics and configs. If it'
  ' contains a run of the same experiment, that run continues. A path, or'
  ' gs://bucket/folder.',
)
flags.DEFINE_alias('logdir', 'job_log_dir')
SET = flags.DEFINE_multi_string(
  'set',
  [],
  'Set a config field, with its path as in config.txt of a run:'
  ' --set=task.train.learner.optimizer.learning_rate=1e-3. May be repeated. For'
  ' an experiment of another framework it changes the translated config.',
)
