"""Settings of training, evaluation and decoding of a task.

`tasks_lib.SingleTask` has one of each. Steps are train steps of the run,
counted from 1: "every 10 steps" means after step 10, 20 and so on.
"""

import dataclasses
import math
import numbers
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from absl import logging

from pax_compat import base_layer, errors, learners
from pax_compat import config as config_lib
from pax_compat.config import Config, instance_field, sub_config_field
from pax_compat.tasks import loading_rules

_DURATION = re.compile(r'(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?')
_SECONDS = (86400, 3600, 60, 1)


class Settings(config_lib.Configurable):
  """Base of settings: validates the fields.

  Fields declared as `int` must be whole numbers, or None where declared.

  Class attributes:
    REFUSED: Pax fields that are not supported, and why. They are declared, so
      that the error gives the reason; only their default is accepted.
    POSITIVE: fields that must be above 0.
    NOT_NEGATIVE: fields that must not be below 0.
  """

  REFUSED: ClassVar[Mapping[str, str]] = {}
  POSITIVE: ClassVar[Sequence[str]] = ()
  NOT_NEGATIVE: ClassVar[Sequence[str]] = ()

  def __post_init__(self):
    self._check_refused()
    for field in dataclasses.fields(self):
      kinds = typing.get_args(field.type) or (field.type,)
      if int in kinds:
        may_be_none = type(None) in kinds
        setattr(self, field.name, self._whole(field.name, may_be_none))

  def _check_refused(self):
    defaults = config_lib.field_values(Config(type(self)))
    for name, reason in self.REFUSED.items():
      value, default = getattr(self, name), defaults[name]
      if value is not default and value != default:
        raise errors.UserError(
          f'{type(self).__name__}.{name} is {value!r}, which is not'
          f' supported: {reason}; expected {default!r}'
        )

  def _whole(self, name: str, may_be_none: bool) -> int | None:
    value = getattr(self, name)
    if value is None and may_be_none:
      return None
    expected, least = 'a whole number', -math.inf
    for least_of, names in ((1, self.POSITIVE), (0, self.NOT_NEGATIVE)):
      if name in names:
        expected, least = f'{expected} of at least {least_of}', least_of
    # Floats too: Pax's own default of num_train_steps is 1e7.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or value % 1 != 0 or value < least:
      expected += ', or None' if may_be_none else ''
      raise errors.wrong_field(self, name, expected)
    return int(value)


class VariationalNoise(Settings):
  """Noise on weights while training: `w + vn_scale * normal()`.

  The gradient at the noisy weights updates the clean ones. Each step draws new
  noise. Evaluation and decoding have no noise.

  Attributes:
    vn_scale: standard deviation of the noise; 0, the default, for none.
    vn_regex: matches the start of the names of the weights with noise, such as
      `params/lm/softmax/w`. The default '' matches all.
    vn_start_step: number of steps without noise, by default 0.
  """

  vn_scale: float = 0.0
  vn_regex: str = ''
  vn_start_step: int = 0

  NOT_NEGATIVE = ('vn_start_step',)

  def __post_init__(self):
    super().__post_init__()
    if not self.vn_scale >= 0:
      raise errors.wrong_field(self, 'vn_scale', '0 or more')
    errors.compiled(self.vn_regex, 'VariationalNoise.vn_regex')


class InferWriter(Settings):
  """Settings of `--mode=infer`.

  Attributes:
    restore_checkpoint_dir: folder of the checkpoints, or of their run; '', the
      default, for that of the job.
    restore_checkpoint_step: step of the checkpoint; None, the default, for the
      newest. `--restore_checkpoint_step` has precedence.
    inference_runner: config of a `base_inference_runner.BaseInferenceRunner`.
    output_format: 'jsonl', the default: a JSON object for each example; 'npz':
      the arrays of the examples of a shard, by path; or 'tfrecord': a
      `tf.train.Example` for each example, as Pax writes them.
    output_num_shards: number of files, by default 32. Example n, from 0, is in
      shard n modulo this number.
  """

  restore_checkpoint_dir: str = ''
  restore_checkpoint_step: int | None = None
  inference_runner: Config | None = None
  output_format: str = 'jsonl'
  output_num_shards: int = 32

  FORMATS: ClassVar[Sequence[str]] = ('jsonl', 'npz', 'tfrecord')
  POSITIVE = ('output_num_shards',)
  NOT_NEGATIVE = ('restore_checkpoint_step',)

  def __post_init__(self):
    super().__post_init__()
    errors.check_choice(self, 'output_format', self.FORMATS)


class Train(Settings):
  """Settings of training.

  Attributes:
    learner: the learner, which optimizes the loss.
    num_train_steps: number of steps of the run.
    save_interval_steps: a checkpoint every this many steps, by default 5000;
      None to save by time only.
    save_interval_seconds: a checkpoint when this much time has passed since the
      last; None, the default, to save by steps only.
    save_keep_interval_duration: one checkpoint in this much time is kept
      permanently, in addition to the newest: '12h' (the default), '90m',
      '1d12h'. None keeps the newest only.
    save_keep_interval_steps: in addition, the checkpoints of every this many
      steps are kept permanently: a multiple of `save_interval_steps`. None, the
      default, for none. The field is not Pax's.
    save_max_to_keep: number of newest checkpoints to keep, by default 10.
    device_sync_interval_steps: a field of Pax until 2023, without effect:
      `max_inflight_steps` limits what is dispatched.
    max_inflight_steps: limit of steps dispatched to the devices at once, by
      default 2; 0 for no limit.
    summary_interval_steps: summaries every this many steps, by default 100, and
      of the first and last step of a run.
    log_train_output_interval_steps: a progress line every this many steps; None
      for one with each summary.
    summary_accumulate_interval_steps: summaries are means over every this many
      steps since the last summary (weighted for metrics). None, the default,
      for the values of a single step.
    async_summary_writing: whether a thread fetches and writes summaries, so
      that no step waits for it; by default True.
    variable_norm_summary: whether summaries have `vars/<path>` for each
      trainable weight: its root mean square before the step.
    eval_interval_steps: an evaluation every this many steps, by default 100,
      and after the last step; 0 for the last only.
    eval_during_training: names of the eval datasets that are evaluated every
      `eval_interval_steps`; None, the default, for all. All are evaluated at
      the end.
    eval_skip_train: whether evaluations skip the next training batch; otherwise
      it is evaluated before training on it, as `eval_train`.
    eval_use_ema_states: whether evaluations use the moving averages of the
      weights; the learner must have `ema_decay`.
    inputs_split_mapping: sharding of batches over the mesh: a dict with
      `map_1d` for fields of one dimension, `map_2d` for two and so on, each a
      mesh axis (or several, or None) for each dimension. Without an entry, the
      first dimension is sharded over the axes `replica` and `data`.
    init_from_checkpoint_rules: `CheckpointLoadingRules` by the path of a
      checkpoint that a new run loads values from; see `docs/warm_start.md`. A
      variable is loaded by the first checkpoint that has a rule for it.
    decode_interval_steps: the decode datasets are decoded every this many
      steps, and after the last; None, the default, or 0 for never.
    decode_start_after_n_steps: steps before the first decoding, by default 0.
    decode_use_ema_states: as `eval_use_ema_states`, for decoding.
    compute_steps_per_sec_interval_steps: number of steps that rates, such as
      steps per second, are averaged over, by default 10.
    profiler_num_steps: steps in a profile, by default 2.
    profiler_min_duration_sec: least seconds of a profile.
    profiler_capture_step: a profile starts this many steps after the run
      started or continued; None, the default, for no profile. It is written to
      `summaries/train`, for TensorBoard's profile page.
    profiler_max_num_hosts: number of processes that profile; None for all.
    profiler_capture_host_profile: whether a profile includes Python calls.
    always_use_train_for_model_init: refused; it is always so.
    enforce_input_specs: whether the first batch must match the experiment's
      `get_input_specs_provider_params`, if there is one.
    random_seed: seed of the initial weights and of all random numbers of steps.
    apply_mutable_list: collections of variables that layers may change in a
      step.
    tensorstore_metadata_key: refused.
    enable_input_checkpointing: checkpoints contain the state of the training
      input, if it has one. True makes it an error if it has none, or if a run
      cannot continue from it.
    restore_transformations: Orbax's `Transform`s by regular expressions of
      arrays, with which a run continues from a checkpoint that does not fit;
      see `warm_start.transforming`.
    external_checkpoint_path: checkpoint that a new run starts from: all of the
      state of another run. None, the default, for new weights.
    external_checkpoint_handler: refused.
    report_progress_hook: whether a progress line is also printed each minute.
    gc_interval_steps: Python's garbage collection runs every this many steps,
      and at no other time while training, so that hosts pause together. 0, the
      default, leaves it to Python.
    auto_sharding: whether all devices are on the mesh axis `data`, whatever the
      model's mesh; batches and large weights are split over it. The flag
      `--enable_auto_sharding` sets it.
    tensor_parallel: with `auto_sharding`, the number of devices on the mesh
      axis `mdl`, over which the heads and hidden dimensions of large weights
      are split; 1, the default, for none.
  """

  learner: Config = sub_config_field(learners.Learner)
  num_train_steps: int = 10_000_000
  save_interval_steps: int | None = 5000
  save_interval_seconds: float | None = None
  save_keep_interval_duration: str | None = '12h'
  save_keep_interval_steps: int | None = None
  save_max_to_keep: int = 10
  device_sync_interval_steps: int | None = None
  max_inflight_steps: int = 2
  summary_interval_steps: int = 100
  log_train_output_interval_steps: int | None = None
  summary_accumulate_interval_steps: int | None = None
  async_summary_writing: bool = True
  variable_norm_summary: bool = True
  eval_interval_steps: int = 100
  eval_during_training: Sequence[str] | None = None
  eval_skip_train: bool = False
  eval_use_ema_states: bool = False
  inputs_split_mapping: Mapping[str, Any] | None = None
  init_from_checkpoint_rules: Mapping[str, Any] = instance_field(dict)
  decode_interval_steps: int | None = None
  decode_start_after_n_steps: int = 0
  decode_use_ema_states: bool = False
  compute_steps_per_sec_interval_steps: int = 10
  profiler_num_steps: int = 2
  profiler_min_duration_sec: float = 1.0
  profiler_capture_step: int | None = None
  profiler_max_num_hosts: int | None = None
  profiler_capture_host_profile: bool = False
  always_use_train_for_model_init: bool = True
  enforce_input_specs: bool = True
  random_seed: int = 1234
  apply_mutable_list: Sequence[str] = instance_field(
    lambda: [
      base_layer.AUX_LOSS,
      base_layer.SUMMARIES,
      base_layer.NON_TRAINABLE,
    ]
  )
  tensorstore_metadata_key: str | None = None
  enable_input_checkpointing: bool | None = False
  restore_transformations: Mapping[str, Any] | None = None
  external_checkpoint_path: Any = None
  external_checkpoint_handler: Any = None
  report_progress_hook: bool = False
  gc_interval_steps: int = 0
  auto_sharding: bool = False
  tensor_parallel: int = 1

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    'auto_sharding',
    'device_sync_interval_steps',
    'save_keep_interval_steps',
    'tensor_parallel',
  )
  REFUSED = {
    'always_use_train_for_model_init': (
      'models are always initialised as for training'
    ),
    'tensorstore_metadata_key': (
      'checkpoints are found by their manifests, not by their names'
    ),
    'external_checkpoint_handler': (
      'checkpoints describe themselves; external_checkpoint_path is enough'
    ),
  }
  POSITIVE = (
    'num_train_steps',
    'save_interval_steps',
    'save_keep_interval_steps',
    'save_max_to_keep',
    'summary_interval_steps',
    'log_train_output_interval_steps',
    'summary_accumulate_interval_steps',
    'compute_steps_per_sec_interval_steps',
    'profiler_num_steps',
    'profiler_max_num_hosts',
    'tensor_parallel',
  )
  NOT_NEGATIVE = (
    'max_inflight_steps',
    'eval_interval_steps',
    'decode_interval_steps',
    'decode_start_after_n_steps',
    'profiler_capture_step',
    'gc_interval_steps',
  )

  def __post_init__(self):
    super().__post_init__()
    if self.num_train_steps >= 1 << 31:
      raise errors.UserError(
        f'Train.num_train_steps is {self.num_train_steps}; expected less than'
        ' 2**31, as steps are counted in int32'
      )
    if isinstance(self.learner, list | tuple):
      raise errors.UserError(
        f'Train.learner is a list of {len(self.learner)} learners; expected'
        ' one. A learners.MultiOptimizerLearner has several optimizers'
      )
    if self.device_sync_interval_steps is not None:
      logging.info(
        'Train.device_sync_interval_steps has no effect: max_inflight_steps'
        ' limits what is dispatched'
      )
    self.keep_interval_seconds()
    self._check_keep_interval_steps()
    self.init_from_checkpoint_rules = loading_rules.checked(
      self.init_from_checkpoint_rules
    )
    every = self.summary_accumulate_interval_steps
    if every and self.summary_interval_steps % every:
      raise errors.UserError(
        f'Train.summary_accumulate_interval_steps is {every}; expected a number'
        f' that divides summary_interval_steps, {self.summary_interval_steps}'
      )

  def _check_keep_interval_steps(self):
    kept, saved = self.save_keep_interval_steps, self.save_interval_steps
    if kept is not None and (saved is None or kept % saved):
      raise errors.UserError(
        f'Train.save_keep_interval_steps is {kept}; expected a multiple of'
        f' save_interval_steps, which is {saved}'
      )

  def keep_interval_seconds(self) -> float | None:
    """Returns the seconds of `save_keep_interval_duration`, None for None.

    Raises:
      UserError: it is not a duration.
    """
    text = self.save_keep_interval_duration
    if text is None:
      return None
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if not text or not match:
      raise errors.UserError(
        f'Train.save_keep_interval_duration is {text!r}; expected a duration'
        " such as '12h', '90m' or '1d12h', or None"
      )
    parts = zip(match.groups(), _SECONDS, strict=True)
    return float(sum(int(n or 0) * seconds for n, seconds in parts))


class Evaluate(Settings):
  """Settings of evaluation.

  Attributes:
    random_seed: seed of the model's random numbers. They differ between the
      batches of an evaluation, and are the same in each evaluation.
    apply_mutable_list: collections of variables that layers may change while a
      batch is evaluated; the changes are not kept.
    write_per_example_out: whether per-example outputs are written, to
      `eval_out/<dataset>/eval_out_<step>_shard_<process>.jsonl`; by default
      False. Padding rows are omitted. Host fields of a batch are included, as
      `host_fields`.
  """

  random_seed: int = 1234
  apply_mutable_list: Sequence[str] = instance_field(
    lambda: [
      base_layer.AUX_LOSS,
      base_layer.SUMMARIES,
      base_layer.NON_TRAINABLE,
    ]
  )
  write_per_example_out: bool = False


class Decode(Settings):
  """Settings of decoding.

  Attributes:
    prng_key_fold_with_batch_index: whether random numbers differ between the
      batches of a decoding; by default they are the same.
    random_seed: seed of the random numbers, the same in each decoding.
    profiler_num_steps: batches in a profile; 0, the default, for no profile.
    profiler_min_duration_sec: least seconds of a profile.
    profiler_capture_step: the first batch of the profile, from 1.
    profiler_max_num_hosts: number of processes that profile; None for all.
    apply_mutable_list: collections of variables that layers may change while a
      batch is decoded; the changes are not kept.
    metrics_prefix: prefix of the names of clu metrics, by default 'Metrics/'.
  """

  prng_key_fold_with_batch_index: bool = False
  random_seed: int = 1234
  profiler_num_steps: int = 0
  profiler_min_duration_sec: float = 1.0
  profiler_capture_step: int = 1
  profiler_max_num_hosts: int | None = None
  apply_mutable_list: Sequence[str] = instance_field(
    lambda: [base_layer.DECODE_CACHE, base_layer.SUMMARIES]
  )
  metrics_prefix: str = 'Metrics/'

  POSITIVE = ('profiler_capture_step', 'profiler_max_num_hosts')
  NOT_NEGATIVE = ('profiler_num_steps',)


class Infer(Settings):
  """Settings of inference.

  Attributes:
    random_seed: seed of the random numbers. They differ between batches.
  """

  random_seed: int = 1234
