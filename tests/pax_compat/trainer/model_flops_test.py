"""Tests of the FLOPs of a model, and of the peaks of devices."""

import types

import jax
import jax.numpy as jnp
import pytest

from lm_tasks.params import lm_cloud
from pax_compat import layers
from pax_compat.experiments import resolved
from pax_compat.layer_core import flop_scopes
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.tools import experiment_check
from pax_compat.trainer import model_flops


class TinyLm(lm_cloud.LmCloudSpmdTest):
  NUM_LAYERS = 3
  VOCAB_SIZE = 96
  MODEL_DIMS = 16
  HIDDEN_DIMS = 40
  DIMS_PER_HEAD = 8
  MAX_SEQ_LEN = 192
  PERCORE_BATCH_SIZE = 2


def checked(cls) -> experiment_check.Checked:
  return experiment_check.examine(resolved.resolve(cls(), name=cls.__name__))


def of_forward(fn, *shapes) -> float | None:
  """Returns three times the FLOPs of a function, as of a model's forward."""
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  mesh = jax.make_mesh((1,), ('data',))
  program = types.SimpleNamespace(
    forward=lambda variables, batch, key: (fn(*variables),),
    abstract_state=types.SimpleNamespace(mdl_vars=arrays),
    mesh=mesh,
  )
  return model_flops.of_train_step(program, {})


def test_a_transformer_has_the_flops_of_the_formula():
  """6 N + 12 L H Q T a token; longer than a block of causal attention."""
  e = TinyLm
  found = checked(e)
  layer = 4 * e.MODEL_DIMS**2 + 2 * e.MODEL_DIMS * e.HIDDEN_DIMS
  weights = e.NUM_LAYERS * layer + e.VOCAB_SIZE * e.MODEL_DIMS
  attention = 12 * e.NUM_LAYERS * e.MODEL_DIMS * e.MAX_SEQ_LEN
  tokens = e.PERCORE_BATCH_SIZE * e.MAX_SEQ_LEN
  assert found.flops == tokens * (6 * weights + attention)
  assert (found.rows, found.length) == (2, e.MAX_SEQ_LEN)


def test_bubbles_of_a_pipeline_are_not_counted():
  """As many FLOPs as the same layers have one after the other."""

  class Piped(TinyLm):
    PERCORE_BATCH_SIZE = 6

    def task(self):
      task = super().task()
      block = task.model.lm_tpl.stacked_transformer_tpl.block
      task.model.lm_tpl.stacked_transformer_tpl = (
        layers.PipelinedTransformer.config(
          num_pipeline_stages=3, num_pipeline_microbatches=2
        ).set(pipeline_stage=block)
      )
      return task

  class Stacked(TinyLm):
    PERCORE_BATCH_SIZE = 6

  assert checked(Piped).flops == checked(Stacked).flops


def test_rematerialisation_is_not_counted():
  def fn(x, w):
    return jnp.sum(jax.checkpoint(lambda x: jnp.tanh(x @ w))(x))

  assert of_forward(fn, (4, 8), (8, 16)) == 3 * 2 * 4 * 8 * 16


def test_loops_branches_and_convolutions():
  def fn(x, w, k):
    y, _ = jax.lax.scan(lambda y, _: (y @ w, None), x, None, length=5)
    y = jax.lax.cond(y[0, 0] > 0, lambda y: y @ w, lambda y: y, y)
    z = jax.lax.conv_general_dilated(
      y[None, None],
      k,
      (1, 1),
      'SAME',
      dimension_numbers=('NCHW', 'OIHW', 'NCHW'),
    )
    return jnp.sum(z)

  product, convolution = 2 * 4 * 8 * 8, 2 * (6 * 4 * 8) * (3 * 3)
  expected = 3 * (6 * product + convolution)
  assert of_forward(fn, (4, 8), (8, 8), (6, 1, 3, 3)) == expected


def test_what_is_not_used_and_what_selects_is_not_counted():
  def fn(table, w):
    ids = jnp.arange(4)
    rows = embedding_tables.lookup(table, ids, 'matmul')
    unused = rows @ w
    with flop_scopes.selection():
      rows = jnp.einsum('ij,jk->ik', jnp.eye(4), rows)
    del unused
    return jnp.sum(rows @ w)

  assert of_forward(fn, (32, 8), (8, 8)) == 3 * 2 * 4 * 8 * 8


def test_hidden_products_have_no_number():
  def callback(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jnp.sum(jax.pure_callback(lambda x: x, shape, x))

  def loop(x):
    return jnp.sum(
      jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)
    )

  assert of_forward(callback, (2, 2)) is None
  assert of_forward(loop, (2, 2)) is None


@pytest.mark.parametrize(
  ('kind', 'teraflops'),
  [
    ('TPU v4', 275),
    ('TPU v5 lite', 197),
    ('TPU v5e', 197),
    ('TPU v5', 459),
    ('TPU v5p', 459),
    ('TPU v6 lite', 918),
    ('NVIDIA A100-SXM4-80GB', 312),
    ('NVIDIA H100 80GB HBM3', 989),
    ('NVIDIA H100 PCIe', 756),
    ('NVIDIA H200', 989),
    ('NVIDIA L4', 121),
    ('NVIDIA L40S', 362),
    ('Tesla T4', 65),
  ],
)
def test_peaks(kind, teraflops):
  assert model_flops.peak_of(kind) == teraflops * 1e12


def test_an_unknown_device_has_no_peak():
  assert model_flops.peak_of('cpu') is None
  assert model_flops.peak_of('NVIDIA GeForce RTX 9999') is None
