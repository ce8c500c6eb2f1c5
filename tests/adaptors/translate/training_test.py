"""Optimizers and schedules against Lingvo's own, and refusals."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptors import lingvo_runtime
from adaptors.translate import registry, training
from adaptors.translate.view import ParamsView, Report
from tests.adaptors.translate import lingvo_steps, parity

_STEPS = 3
_RATE = 0.1


def _gradients():
  rng = np.random.default_rng(5)
  return [
    {
      'a': rng.normal(size=[4, 3]).astype(np.float32),
      'b': (1e-4 * rng.normal(size=[5])).astype(np.float32),
    }
    for _ in range(_STEPS)
  ]


@pytest.mark.parametrize(
  'name,fields',
  [
    ('Adam', {}),
    ('Adam', {'beta1': 0.8, 'beta2': 0.95, 'epsilon': 1e-3}),
    ('Adam', {'beta1': 0.9, 'beta2': 0.98, 'epsilon': 1e-9}),
    ('SGD', {}),
  ],
)
def test_three_optimizer_steps(name, fields):
  module = lingvo_runtime.module('lingvo.core.optimizer')
  params = getattr(module, name).Params().Set(**fields)
  gradients = _gradients()
  config = parity.translate(params).set(learning_rate=_RATE)
  transformation = config.Instantiate().grad_transformation()
  weights = {k: jnp.zeros_like(v) for k, v in gradients[0].items()}
  state = transformation.init(weights)
  steps = lingvo_steps.optimizer_steps(
    params,
    {k: np.zeros_like(v) for k, v in gradients[0].items()},
    gradients,
    _RATE,
  )
  for gradient, expected in zip(gradients, steps, strict=True):
    updates, state = transformation.update(gradient, state, weights)
    weights = optax.apply_updates(weights, updates)
    for key, value in expected.items():
      parity.assert_close(weights[key], value, 1e-5, key)


@pytest.mark.parametrize(
  'name,fields',
  [
    ('Constant', {'value': 0.3}),
    ('TransformerSchedule', {}),
    (
      'TransformerSchedule',
      {'warmup_steps': 7, 'model_dim': 32, 'worker_replicas': 3},
    ),
    ('TransformerSchedule', {'warmup_steps': 5, 'decay_end': 60}),
    (
      'TransformerSchedule',
      {'warmup_steps': 5, 'decay_factor': -0.7, 'start_step': 20},
    ),
  ],
)
def test_schedule(name, fields):
  module = lingvo_runtime.module('lingvo.core.schedule')
  tf = lingvo_runtime.module('tensorflow')
  params = getattr(module, name).Params().Set(**fields)
  ours = parity.translate(params).Instantiate()
  with lingvo_runtime.cluster():
    theirs = params.Instantiate()
    for step in (0, 1, 4, 5, 20, 59, 60, 61, 4000, 100_000):
      np.testing.assert_allclose(
        ours.value_at(jnp.int32(step)),
        theirs.Value(tf.constant(step)).numpy(),
        rtol=1e-5,
        err_msg=str(step),
      )


def _train_issues(**fields):
  model = lingvo_runtime.module('lingvo.tasks.lm.model')
  params = model.LanguageModel.Params()
  module = lingvo_runtime.module('lingvo.core.schedule')
  params.train.lr_schedule = module.Constant.Params()
  params.train.Set(**fields)
  report = Report()
  view = ParamsView(params, 'task', report).group('train')
  for name in ('max_lstm_gradient_norm', 'sum_loss_across_tokens_in_batch'):
    view.get(name)  # The task's own, which its translator reads.
  config = training.train(view)
  return config, list(map(str, report.issues))


def test_train_fields():
  config, issues = _train_issues(
    max_steps=77,
    save_interval_steps=9,
    save_max_to_keep=3,
    summary_interval_steps=5,
    learning_rate=0.25,
    l2_regularizer_weight=0.0,
    clip_gradient_norm_to_value=2.0,
    grad_norm_to_clip_to_zero=50.0,
  )
  assert not issues
  assert config.num_train_steps == 77
  assert config.save_interval_steps == 9
  assert config.save_interval_seconds is None
  assert config.save_max_to_keep == 3
  assert config.summary_interval_steps == 5
  assert config.learner.grad_norm_to_clip_to_zero == 50.0
  assert config.learner.nonfinite_gradients == 'zero'
  assert config.learner.regularize_before_clipping
  assert config.learner.optimizer.learning_rate == 0.25
  assert config.learner.optimizer.clip_gradient_norm_to_value == 2.0
  assert config.learner.optimizer.l2_regularizer_weight is None


def test_saving_by_time_where_lingvo_does():
  config, _ = _train_issues(save_interval_seconds=30)
  assert config.save_interval_steps is None
  assert config.save_interval_seconds == 30


@pytest.mark.parametrize(
  'field,value',
  [
    ('ema_decay', 0.9),
    ('vn_std', 0.1),
    ('l1_regularizer_weight', 0.1),
    ('bprop_variable_filter', 'x'),
    ('clip_gradient_single_norm_to_value', 1.0),
    ('init_from_checkpoint_rules', {'path': ([], [])}),
  ],
)
def test_what_is_not_translated_is_named(field, value):
  config, issues = _train_issues(**{field: value})
  assert len(issues) == 1
  assert f'task.train.{field}' in issues[0]
  assert 'LanguageModel' in issues[0]
  del config


def test_every_untranslated_part_is_listed():
  module = lingvo_runtime.module('lingvo.core.optimizer')
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  config, issues = _train_issues(
    optimizer=module.AdaDelta.Params(),
    lr_schedule=schedule.InverseSigmoid.Params(),
    ema_decay=0.5,
  )
  assert config is None
  assert any(
    'train.optimizer (lingvo.core.optimizer.AdaDelta)' in i for i in issues
  )
  assert any(
    'train.lr_schedule (lingvo.core.schedule.InverseSigmoid)' in i
    for i in issues
  )
  assert any('train.ema_decay' in i for i in issues)


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
    layers = lingvo_runtime.module('lingvo.core.layers')
    (issue,) = parity.issues_of(layers.Conv2DLayer.Params().Set(name='conv'))
    assert 'lingvo.core.layers.Conv2DLayer' in issue
    assert registry.find(layers.Conv2DLayer) is None
