"""asr's models, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.bridge.families import asr_grapheme, asr_wpm
from tests.adaptors.translate import task_parity, tiny_task


def _without_noise(family):
  """Returns the Params of a family, without its variational noise."""
  params = family.task_params()
  params.train.vn_std = 0.0
  return params


@pytest.mark.exhaustive
def test_twenty_steps():
  """Of the stock learner, with the moving statistics of batch norms."""
  params = _without_noise(asr_grapheme)
  batches = [asr_grapheme.batch(seed) for seed in range(20)]
  theirs = task_parity.check(params, batches)
  for path, value in theirs.last.items():
    if not path.startswith('learners['):
      assert np.any(theirs.first[path] != value), path


@pytest.mark.slow
def test_metrics_of_an_evaluation_within_a_millionth():
  params, batch = _without_noise(asr_wpm), asr_wpm.batch(1)
  theirs, ours = task_parity.check_evaluation(params, batch)
  found = ours.evaluate(batch)
  assert set(theirs.metrics) == {
    'loss',
    'log_pplx',
    'token_normed_prob',
    'fraction_of_correct_next_step_preds',
  }
  for name, wanted in theirs.metrics.items():
    np.testing.assert_allclose(found[name], wanted, rtol=1e-6, err_msg=name)


def _residual():
  """Residuals, smoothed labels, a mean over utterances, several heads."""
  layers = lingvo_runtime.module('lingvo.core.layers')
  attention = lingvo_runtime.module('lingvo.core.attention')
  params = _without_noise(asr_grapheme)
  params.encoder.Set(
    num_lstm_layers=4,
    residual_start=2,
    residual_stride=2,
    project_lstm_output=False,
  )
  decoder = params.decoder
  cell = decoder.rnn_cell_tpl
  decoder.Set(
    use_while_loop_based_unrolling=True,
    rnn_layers=3,
    residual_start=2,
    rnn_cell_tpl=[cell.Copy() for _ in range(3)],
    label_smoothing=layers.UniformLabelSmoother.Params(),
    per_token_avg_loss=False,
    attention=attention.MultiHeadedAttention.Params().Set(
      hidden_dim=8,
      num_attention_heads=2,
      context_dim=16,
      inner_atten_params=attention.AdditiveAttention.Params(),
      use_source_vec_as_attention_value=False,
      enable_ctx_pre_proj=False,
    ),
  )
  return params


def _plain():
  """No batch norm, other dims, cells that project, no context at the end."""
  params = _without_noise(asr_grapheme)
  params.encoder.Set(
    pad_steps=0, lstm_cell_size=6, project_after_last_lstm=True
  )
  params.encoder.cnn_tpl.Set(batch_norm=False, bias=True)
  params.encoder.proj_tpl.Set(batch_norm=False, has_bias=True)
  # Twelve dims of the first recurrent layer's input, and four zeros.
  params.encoder.conv_filter_shapes = [(3, 3, 1, 4), (3, 3, 4, 3)]
  params.decoder.Set(
    rnn_cell_hidden_dim=5, softmax_uses_attention=False, source_dim=12
  )
  return params


@pytest.mark.slow
@pytest.mark.parametrize('make', [_residual, _plain])
def test_other_settings(make):
  task_parity.check_first(make(), [asr_grapheme.batch(0)])


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('encoder.use_specaugment', True),
    ('encoder.num_conv_lstm_layers', 1),
    ('encoder.highway_skip', True),
    ('encoder.layer_index_before_stacking', 0),
    ('encoder.bidi_rnn_type', 'sru'),
    ('encoder.proj_tpl.weight_norm', True),
    ('encoder.cnn_tpl.dilation_rate', (2, 1)),
    ('decoder.min_ground_truth_prob', 0.5),
    ('decoder.teacher_forcing', False),
    ('decoder.atten_context_dim', 3),
    ('decoder.adapter_task_id_field', 'task'),
    ('decoder.logit_types', {'logits': 0.5}),
    ('decoder.emb.vocab_size', 5),
  ],
)
def test_what_is_refused(field, value):
  params = asr_grapheme.task_params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  assert field.split('.')[-1] in str(error.value)


def test_a_fused_language_model_is_refused():
  params = asr_grapheme.task_params()
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  params.decoder.fusion.lm = layers.RnnLm.Params()
  with pytest.raises(errors.UserError, match=r'fusion\.lm.*RnnLm'):
    tiny_task.translate(params)
