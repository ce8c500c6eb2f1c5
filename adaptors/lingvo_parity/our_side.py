"""Runs the translated task: layers, loss, gradients, metrics and steps."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fiddle.selectors
import jax
import jax.numpy as jnp
import numpy as np

from adaptors.bridge.layer import BridgedLayer
from adaptors.bridge.model import BridgedModel
from adaptors.bridge.ops import fixed_random_ops
from adaptors.lingvo_parity import given_samples, lingvo_layers
from adaptors.lingvo_parity.results import LayerOutput, Run, Sample, Step
from adaptors.translate.tasks.single import TranslatedTask
from pax_compat import base_layer, learners
from pax_compat.config import Config
from pax_compat.layers.softmaxes.sampled_softmax import SampledSoftmax
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program

_INTERMEDIATES = 'intermediates'
_LEARNING_RATE = 'learning/lr'


def run(
  translated: TranslatedTask,
  first: NestedMap,
  batches: Sequence[NestedMap],
  weights: Mapping[str, np.ndarray],
  *,
  sample: Sample | None,
  step_samples: Sequence[Sample],
) -> Run:
  """Runs a task; the arguments are as of `lingvo_side.run`.

  Args:
    translated: the task.
    first: the batch that layers, gradients and metrics are compared on.
    batches: to train on.
    weights: initial weights by theta path.
    sample: of classes, for the first batch; None without sampling.
    step_samples: of classes, for each step.
  """
  sides = Sides(
    translated, first, batches, sample=sample, step_samples=step_samples
  )
  return sides.run(weights)


class Sides:
  """The programs of a task, to run from several initial weights."""

  def __init__(
    self,
    translated: TranslatedTask,
    first: NestedMap,
    batches: Sequence[NestedMap],
    *,
    sample: Sample | None,
    step_samples: Sequence[Sample],
  ):
    """Creates the programs; the arguments are as of `run`."""
    self._first, self._batches = first, batches
    self._training = None
    with fixed_random_ops.for_bridged():
      self._side = _Side(translated, [sample] if sample else [], first)
      if batches and not step_samples and _are_alike(first, batches[0]):
        self._training = self._side
      elif batches:
        self._training = _Side(translated, step_samples, batches[0])

  def run(self, weights: Mapping[str, np.ndarray]) -> Run:
    """Runs the task from initial weights, by theta path."""
    with fixed_random_ops.for_bridged():
      done = self._side.forward(self._first, weights)
      if self._training:
        done.steps, done.last = self._training.train(self._batches, weights)
    return done


def rounded(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns weights that differ by a rounding error, up or down at random."""
  rng = np.random.default_rng(0)
  return {
    path: np.nextafter(
      w, np.where(rng.random(w.shape) < 0.5, -np.inf, np.inf).astype(w.dtype)
    )
    if np.issubdtype(w.dtype, np.floating)
    else w
    for path, w in weights.items()
  }


def is_bridged(translated: TranslatedTask) -> bool:
  """Whether Lingvo computes a task, or some of its layers, inside of JAX."""
  return any(
    True
    for kind in (BridgedModel, BridgedLayer)
    for _ in _selected(translated.config, kind)
  )


class _Side:
  """The program of a translated task, with given samples of classes."""

  def __init__(self, translated, samples: Sequence[Sample], batch: NestedMap):
    self._variables = translated.variables.only(is_trainable=True)
    self._others = translated.variables.only(is_trainable=False)
    names = translated.config.model.mesh_axis_names
    self._program = program.create(
      _with_samples(translated.config, samples).Instantiate(),
      # Without axes of its own, a model has those of all devices.
      partitioning.mesh_of_one(names)
      if names
      else partitioning.create_mesh(None, None),
      batch,
    )

  def forward(self, batch: NestedMap, weights: Mapping) -> Run:
    """Computes everything except training steps."""
    state = self._state(batch, weights)
    (loss, kept), gradients = self._loss_and_gradients(state.mdl_vars, batch, 0)
    (again, _), _ = self._loss_and_gradients(state.mdl_vars, batch, 1)
    evaluated = self._program.eval_step(state.mdl_vars, batch)
    return Run(
      layers=list(_layers(kept, ())),
      loss=float(loss),
      gradients=self._in_lingvo(gradients),
      metrics={
        name: float(value)
        for name, (value, _) in evaluated.weighted.items()
        if not value.ndim
      },
      is_random=float(again) != float(loss),
    )

  def train(
    self, batches: Sequence[NestedMap], weights: Mapping
  ) -> tuple[list[Step], dict]:
    """Trains a step per batch; returns the steps and the last weights.

    Args:
      batches: of the steps.
      weights: initial ones.
    """
    state = self._state(batches[0], weights)
    steps = []
    for batch in batches:
      state, outputs = self._program.train_step(state, batch)
      names = outputs.scalar_names()
      rate = float(outputs[_LEARNING_RATE]) if _LEARNING_RATE in names else None
      steps.append(Step(float(outputs['loss']), rate))
    return steps, self._in_lingvo(state.mdl_vars[base_layer.PARAMS])

  def _state(self, batch, weights) -> program.TrainState:
    """Returns the initial state, with given weights."""
    made = self._program
    params = jax.tree.map(jnp.asarray, self._variables.to_jax(weights))
    others = {}
    if set(made.abstract_state.mdl_vars) != {base_layer.PARAMS}:
      others = made.init_state(batch).mdl_vars
      given = jax.tree.map(jnp.asarray, self._others.to_jax(weights))
      kept = others.get(base_layer.NON_TRAINABLE, {})
      others[base_layer.NON_TRAINABLE] = _merged(kept, given)
    mdl_vars = {**others, base_layer.PARAMS: params}
    copies = jax.tree.map(jnp.copy, mdl_vars)  # The state is donated.
    return program.TrainState(
      step=jnp.zeros([], jnp.int32),
      mdl_vars=mdl_vars,
      opt_state=made.learner.init(
        copies[base_layer.PARAMS],
        weight_metas=made.weight_metas,
        variables=copies,
      ),
    )

  @functools.cached_property
  def _loss_and_gradients(self):
    """(variables, batch, seed) -> ((loss, outputs of layers), gradients)."""
    made = self._program

    def loss(params, others, batch, seed):
      value, _, _, updated = made.forward(
        {**others, base_layer.PARAMS: params},
        batch,
        jax.random.key(seed),
        mutable=[*made.task.train.apply_mutable_list, _INTERMEDIATES],
        capture_intermediates=_is_kept,
      )
      return value, updated.get(_INTERMEDIATES, {})

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def run_on_mesh(mdl_vars, batch, seed):
      others = {k: v for k, v in mdl_vars.items() if k != base_layer.PARAMS}
      with jax.set_mesh(made.mesh):
        return compiled(mdl_vars[base_layer.PARAMS], others, batch, seed)

    return run_on_mesh

  def _in_lingvo(self, params) -> dict[str, np.ndarray]:
    return self._variables.to_lingvo(learners.by_path(params))


def _are_alike(one: NestedMap, other: NestedMap) -> bool:
  """Whether two batches have the same shapes."""
  return jax.tree.map(np.shape, one) == jax.tree.map(np.shape, other)


def _merged(tree: Mapping[str, Any], given: Mapping[str, Any]) -> dict:
  """Returns a nested dict with some values replaced by given ones."""
  return {
    k: given.get(k, v)
    if not isinstance(v, Mapping)
    else _merged(v, given.get(k, {}))
    for k, v in tree.items()
  }


def _selected(config: Config, kind: type) -> Iterator[Config]:
  """Returns the configs of a class, or of those derived from it."""
  found = fiddle.selectors.select(config, kind, check_nonempty=False)
  return iter(found)


def _with_samples(config: Config, samples: Sequence[Sample]) -> Config:
  """Returns a task's config with given samples for its sampled softmax."""
  config = config.clone()
  if samples:
    given = [(s.classes, s.expected_counts) for s in samples]
    for softmax in list(_selected(config, SampledSoftmax)):
      made = given_samples.given(softmax, given)
      fiddle.update_callable(softmax, given_samples.GivenSamples)
      softmax.set(classes=made.classes, num_tries=made.num_tries)
  return config


def _is_kept(module: Any, method: str) -> bool:
  """Whether flax captures a method's outputs. Others may run within loops."""
  del module
  return method in ('__call__', 'emb_lookup')


def _layers(node: Any, path: tuple[str, ...]) -> Iterator[LayerOutput]:
  """Yields the captured outputs, method by method and call by call."""
  for name, item in node.items():
    if not isinstance(item, tuple):
      yield from _layers(item, (*path, name))
      continue
    for result in item:
      for key, value in lingvo_layers.by_name(result).items():
        if hasattr(value, 'dtype') and jnp.issubdtype(value.dtype, np.floating):
          yield LayerOutput('/'.join(path), key, np.asarray(value))
