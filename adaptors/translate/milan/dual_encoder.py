"""Translators of milan's dual encoders.

An encoder that loads a module of TensorFlow Hub cannot be translated: where
bridges are allowed, that encoder alone is bridged.
"""

import dataclasses
from typing import Any

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.builder import builder_parts
from adaptors.translate.functions import qualified_name
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path, short
from pax_compat.config import Config
from pax_compat.layers.models import dual_encoder

_MILAN = 'lingvo.tasks.milan'
_LABELS = f'{_MILAN}.labels'
# Wraps a module, whose variables have the names of the graph.
IMAGE_MODULE = f'{_MILAN}.tf_hub_layers.ImageModuleV2'


@translates(f'{_MILAN}.dual_encoder.MilanTask')
def milan_task(view: ParamsView) -> Translated | None:
  found = registry.translate(view.child('dual_encoder'))
  if found is None:
    return None
  # The model has the task's name, too, and the second scope gets a number.
  variables = _in_scope(
    found.variables.under('dual_encoder', ''), f'{view.params.name}_1'
  )
  return Translated(found.config, variables)


@translates(f'{_MILAN}.dual_encoder.DualEncoder')
def dual_encoder_model(view: ParamsView) -> Translated | None:
  configs = view.get('encoder_configs')
  dims = view.get('joint_embedding_dim') or max(
    (config.output_dim for config in configs.values()), default=0
  )
  parts = [_modality(view, name, dims) for name in configs]
  score = registry.translate(view.child('score_function'))
  labels = _labels(view)
  fields = dict(
    loss_weights=[
      (query, result, float(weight))
      for (query, result), weight in view.get('loss_weights').items()
    ],
    regularization_loss_weight=float(view.get('regularization_loss_weight')),
  )
  if not configs:
    view.issue('encoder_configs', 'it is empty')
  if None in (*parts, score, labels):
    return None
  variables = score.variables.under('score_function', 'score')
  for i, part in enumerate(parts):
    variables += part.variables.under('', f'encoders_{i}')
  config = dual_encoder.DualEncoder.config(
    encoder_tpls=[part.config for part in parts],
    score_tpl=score.config,
    labels_tpl=labels,
    **fields,
  )
  return Translated(config, variables)


@translates(f'{_MILAN}.score_functions.DotProductScoreFunction')
def dot_product(view: ParamsView) -> Translated:
  return Translated(dual_encoder.DotProduct.config())


def _modality(view: ParamsView, name: str, dims: int) -> Translated | None:
  """Returns the encoder of a modality, with paths from the dual encoder."""
  config = view.get('encoder_configs')[name]
  inputs = config.input_features
  inputs = (inputs,) if isinstance(inputs, str) else inputs
  if type(inputs) is not tuple or not all(isinstance(x, str) for x in inputs):
    view.issue(
      f'encoder_configs[{name}].input_features',
      f'{short(inputs)} is not translated, only a name or a tuple of names',
    )
    return None
  encoder = _encoder(view, name, config)
  tpl = dual_encoder.ModalityEncoder.config(
    modality=name, input_fields=list(inputs), id_field=config.id_feature
  )
  projection, variables = None, VariableMap()
  if config.output_dim != dims:
    layers = lingvo_runtime.module('lingvo.core.layers')
    projection = builder_parts.translate_part(
      view.adopt(
        layers.ProjectionLayer.Params().Set(
          input_dim=config.output_dim,
          output_dim=dims,
          activation='NONE',
          has_bias=True,
          batch_norm=False,
        ),
        f'projections[{name}]',
      )
    )
    if projection is None:
      return None
    tpl.set(projection_tpl=projection.config)
    variables = projection.variables.under(f'projections.{name}', 'projection')
  if encoder is None:
    return None
  tpl.set(encoder_tpl=encoder.config)
  return Translated(
    tpl, encoder.variables.under(f'encoder_{name}', 'encoder') + variables
  )


def _encoder(view: ParamsView, name: str, config: Any) -> Translated | None:
  """Returns the layer that encodes a modality."""
  scope = config.encoder_scope or f'{name}_encoder'
  child = view.adopt(config.encoder, f'encoder_configs[{name}].encoder')
  child.params.name = child.params.name or scope
  if not params_trees.has_base(child.params.cls, IMAGE_MODULE):
    return builder_parts.translate_part(child)
  translated = registry.translate(child)
  if translated is None:
    return None
  within = f'{view.params.name or "dual_encoder"}/{scope}'
  return Translated(translated.config, _in_scope(translated.variables, within))


def _in_scope(variables: VariableMap, scope: str) -> VariableMap:
  """Returns variables, with the names of those of modules in an outer scope."""

  def scoped(theta: str) -> str:
    first, slash, rest = theta.partition('/')
    path, dot, name = first.rpartition('.')
    return f'{path}{dot}{scope}/{name}/{rest}' if slash else theta

  return VariableMap(
    dataclasses.replace(v, theta=tuple(map(scoped, v.theta))) for v in variables
  )


def _labels(view: ParamsView) -> Config | None:
  """Returns what labels pairs."""
  fn, fields = view.get('label_fn'), {}
  bound = qualified_name(fn)
  if bound == f'{_MILAN}.dataset_spec.FileBasedDatasetSpec.Label':
    fn = fn.__self__._label_fn
  if class_path(type(fn)) == f'{_LABELS}.MultiItemExampleWrapper':
    fn, fields = fn._example_pair_labeler, dict(ignore_self=True)
  if class_path(type(fn)) != f'{_LABELS}.ExamplePairLabeler':
    view.issue(
      'label_fn',
      f'{qualified_name(fn)} is not translated, only an ExamplePairLabeler, in'
      ' a MultiItemExampleWrapper or not',
    )
    return None
  return dual_encoder.PairLabels.config(
    ignore_if_equal=list(fn._drop_on_match), **fields
  )
