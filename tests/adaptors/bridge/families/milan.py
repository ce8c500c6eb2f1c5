"""A dual encoder of milan for texts.

Shapes: B batch, T time, D input dims.
"""

import numpy as np

from adaptors import lingvo_runtime

# The loss needs the number of rows.
STATIC_SHAPES = True
# With 'tpu' it would need the number of cores.
XLA_DEVICE = 'cpu'

_TOWERS = {'query': 6, 'caption': 8}
_ROWS, _LENGTH, _OUTPUT_DIM = 8, 5, 8


def task_params():
  """Returns Params of two small towers, without dropout."""
  dual_encoder = lingvo_runtime.module('lingvo.tasks.milan.dual_encoder')
  labels = lingvo_runtime.module('lingvo.tasks.milan.labels')
  layers = lingvo_runtime.module('lingvo.core.layers')
  optimizer = lingvo_runtime.module('lingvo.core.optimizer')
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  params = dual_encoder.MilanTask.Params()
  params.dual_encoder.Set(
    name='dual_encoder',
    encoder_configs={name: _tower(name, dim) for name, dim in _TOWERS.items()},
    label_fn=labels.ExamplePairLabeler('query_ids'),
    loss_weights={('query', 'caption'): 0.5, ('caption', 'query'): 0.5},
    joint_embedding_dim=_OUTPUT_DIM + 2,
  )
  # As in milan's recipe.
  params.train.Set(
    clip_gradient_norm_to_value=1.0,
    grad_norm_tracker=layers.GradNormTracker.Params().Set(
      name='grad_norm_tracker', grad_norm_clip_cap_min=0.1
    ),
    optimizer=optimizer.Adam.Params().Set(beta1=0.9, beta2=0.999, epsilon=1e-8),
    learning_rate=1e-4,
    lr_schedule=schedule.StepwiseExponentialSchedule.Params().Set(
      decay=0.999, num_steps_per_decay=1000
    ),
  )
  return params


def _tower(name: str, input_dim: int):
  """Returns the config of one tower."""
  dual_encoder = lingvo_runtime.module('lingvo.tasks.milan.dual_encoder')
  transformers = lingvo_runtime.module('lingvo.tasks.milan.transformers')
  stack = transformers.GetTransformerStackWithEmbeddingInput(
    input_dim=input_dim,
    num_layers=2,
    hidden_dim=16,
    num_attention_heads=2,
    output_dim=_OUTPUT_DIM,
  )
  return dual_encoder.EncoderConfig().Set(
    input_features=(f'{name}_features', f'{name}_lengths'),
    id_feature=f'{name}_ids',
    encoder=stack,
    output_dim=_OUTPUT_DIM,
  )


def batch(seed: int) -> dict[str, np.ndarray]:
  """Returns features [B, T, D], lengths [B] and ids [B] of both texts.

  Two of the queries are the same one.
  """
  rng = np.random.default_rng(seed)
  made = {}
  for name, dim in _TOWERS.items():
    features = rng.normal(size=(_ROWS, _LENGTH, dim))
    made |= {
      f'{name}_features': features.astype(np.float32),
      f'{name}_lengths': rng.integers(2, _LENGTH + 1, _ROWS, np.int32),
      f'{name}_ids': np.arange(_ROWS, dtype=np.int32),
    }
  made['query_ids'][1] = 0
  return made
