"""A task's `train` without its learner; and the registry's rules."""

import pytest

from adaptors import lingvo_runtime
from adaptors.translate import registry
from pax_compat import errors
from tests.adaptors.translate import parity, tiny_task
from tests.adaptors.translate.tiny_task import optimizer, schedule


def _train(**fields):
  """Returns the translated `train`, and the notes."""
  translated = tiny_task.translate(tiny_task.params(**fields))
  return translated.config.train, translated.notes


def _issues(task_params) -> list[str]:
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(task_params)
  return str(error.value).splitlines()[1:]


def test_train_fields():
  config, _ = _train(
    max_steps=77,
    save_interval_steps=9,
    save_max_to_keep=3,
    save_keep_checkpoint_every_n_hours=0.25,
    summary_interval_steps=5,
    learning_rate=0.25,
    l2_regularizer_weight=0.0,
    clip_gradient_norm_to_value=2.0,
    grad_norm_to_clip_to_zero=50.0,
  )
  assert config.num_train_steps == 77
  assert config.save_interval_steps == 9
  assert config.save_interval_seconds is None
  assert config.save_max_to_keep == 3
  assert config.Instantiate().keep_interval_seconds() == 900
  assert config.summary_interval_steps == 5
  assert not config.eval_use_ema_states
  assert config.learner.grad_norm_to_clip_to_zero == 50.0
  assert config.learner.nonfinite_gradients == 'zero'
  assert config.learner.regularize_before_clipping
  assert config.learner.optimizer.learning_rate == 0.25
  assert config.learner.optimizer.clip_gradient_norm_to_value == 2.0
  assert config.learner.optimizer.l2_regularizer_weight is None


def test_saving_by_time_where_lingvo_does():
  config, _ = _train(
    save_interval_seconds=30, save_keep_checkpoint_every_n_hours=None
  )
  assert config.save_interval_steps is None
  assert config.save_interval_seconds == 30
  assert config.save_keep_interval_duration is None


def test_averaged_weights_are_evaluated():
  config, _ = _train(ema_decay=0.9)
  assert config.eval_use_ema_states and config.decode_use_ema_states


def test_fields_without_effect_are_told():
  _, notes = _train(tpu_steps_per_loop=3, vn_start_step=5)
  assert any('train.tpu_steps_per_loop = 3' in note for note in notes)
  assert any('train.vn_start_step = 5' in note for note in notes)


class TestEarlyStop:
  """Runs that end when a metric gets no better."""

  def _params(self, **fields):
    params = tiny_task.params()
    params.train.early_stop.Set(window=30, **fields)
    return params

  def test_its_fields(self):
    params = self._params(tolerance=0.5, min_steps=7)
    params.train.early_stop.metric_history.Set(
      jobname='eval_test', metric='acc', minimize=False
    )
    translated = tiny_task.translate(params)
    made = translated.early_stop.set(split='eval_Test').Instantiate()
    assert translated.early_stop_job == 'eval_test'
    assert (made.metric, made.minimize) == ('acc', False)
    assert (made.window, made.tolerance, made.min_steps) == (30, 0.5, 7)

  def test_no_window(self):
    assert tiny_task.translate(tiny_task.params()).early_stop is None

  @pytest.mark.parametrize(
    'name,value', [('jobname', 'decoder_dev'), ('tfevent_file', True)]
  )
  def test_what_is_refused(self, name, value):
    params = self._params()
    params.train.early_stop.metric_history.Set(**{name: value})
    (issue,) = _issues(params)
    assert f'task.train.early_stop.metric_history.{name}' in issue


@pytest.mark.parametrize(
  'field,value',
  [
    ('pruning_hparams_dict', {'name': 'x'}),
    ('ema_decay', 2.0),
  ],
)
def test_what_is_not_translated_is_named(field, value):
  (issue,) = _issues(tiny_task.params(**{field: value}))
  assert f'task.train.{field}' in issue and 'TinyTask' in issue


def test_every_untranslated_part_is_listed():
  issues = _issues(
    tiny_task.params(
      optimizer=optimizer('DynamicAccumulator'),
      lr_schedule=schedule('DevBasedSchedule', window=0),
      ema_decay=2.0,
    ).Set(task_global_step=True)
  )
  for part in (
    'train.optimizer.min_accum_weight (lingvo.core.optimizer.Dynamic',
    'train.lr_schedule.window (lingvo.core.schedule.DevBasedSchedule)',
    'train.ema_decay',
    'task.task_global_step',
  ):
    assert any(part in issue for issue in issues), part


def test_issues_of_a_model_that_is_not_translated():
  """Its variables are unknown then, and are not reported."""
  params = tiny_task.params(
    bprop_variable_filter='first', optimizer=optimizer('DynamicAccumulator')
  )
  params.first.batch_norm = True
  issues = _issues(params)
  assert len(issues) == 2
  assert any('task.first.batch_norm' in issue for issue in issues)
  assert any('DynamicAccumulator' in issue for issue in issues)


class TestRegistry:
  """Which classes have the translator of a parent."""

  def _layer_norm(self):
    return lingvo_runtime.module('lingvo.core.layers').LayerNorm

  def test_a_subclass_that_changes_its_params_only(self):
    base = self._layer_norm()

    class OtherDefaults(base):
      """Another epsilon."""

      @classmethod
      def Params(cls):
        return super().Params().Set(epsilon=0.5)

    params = OtherDefaults.Params().Set(name='ln', input_dim=4)
    assert parity.translate(params).config.epsilon == 0.5

  @pytest.mark.parametrize('member', ['FProp', '_Helper', 'CONSTANT'])
  def test_a_subclass_that_computes_otherwise(self, member):
    base = self._layer_norm()
    other = type(base)('Other', (base,), {member: lambda *a: None})
    (issue,) = parity.issues_of(other.Params().Set(name='ln', input_dim=4))
    assert 'Other' in issue and member in issue
    assert 'lingvo.core.layers.LayerNorm' in issue

  def test_a_subclass_with_an_init_of_its_own(self):
    base = self._layer_norm()

    def init(self, params):
      base.__init__(self, params)

    other = type(base)('Other', (base,), {'__init__': init})
    (issue,) = parity.issues_of(other.Params().Set(name='ln', input_dim=4))
    assert '__init__' in issue

  def test_an_unread_field(self):
    base = self._layer_norm()

    class MoreFields(base):
      """Defines a field that no translator knows."""

      @classmethod
      def Params(cls):
        params = super().Params()
        params.Define('extra', 1, 'Unknown.')
        return params

    fine = MoreFields.Params().Set(name='ln', input_dim=4)
    assert not parity.issues_of(fine)
    (issue,) = parity.issues_of(fine.Set(extra=2))
    assert 'layer.extra' in issue and '2' in issue

  def test_no_translator_at_all(self):
    base = lingvo_runtime.module('lingvo.core.base_layer')

    class NobodyKnows(base.BaseLayer):
      """A layer of a user."""

    (issue,) = parity.issues_of(NobodyKnows.Params().Set(name='mine'))
    assert 'NobodyKnows' in issue
    assert registry.find(NobodyKnows) is None
