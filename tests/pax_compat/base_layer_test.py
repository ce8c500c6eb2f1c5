"""Tests of the base class of all layers."""

import doctest

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, config, errors
from pax_compat.base_layer import (
  AUX_LOSS,
  NON_TRAINABLE,
  PARAMS,
  RANDOM,
  SKIP_LP_REGULARIZATION,
  SUMMARIES,
  AuxLossStruct,
  BaseLayer,
  WeightHParams,
  WeightInit,
)
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.summaries import Summary, SummaryType


def test_the_example():
  result = doctest.testmod(base_layer)
  assert result.attempted > 0
  assert result.failed == 0


class Child(BaseLayer):
  dims: int = REQUIRED

  def setup(self):
    self.create_variable('w', WeightHParams([self.dims]))

  def __call__(self, x):
    return x * self.theta.w


class Parent(BaseLayer):
  child_tpl: Config = sub_config_field(Child)

  def setup(self):
    self.create_child('one', self.child_tpl, dims=2)
    self.create_children(
      'more', [self.child_tpl.clone(), self.child_tpl.clone()], dims=2
    )

  def __call__(self, x):
    for layer in (self.one, *self.more):
      x = layer(x)
    return x


class Everything(BaseLayer):
  """Has weights of every kind, and outputs of every kind."""

  def setup(self):
    self.create_variable(
      'w',
      WeightHParams(
        [2, 3],
        WeightInit.Constant(1.5),
        collections=['mine'],
        tensor_split_dims_mapping=['data', None],
      ),
    )
    self.create_variable(
      'table',
      WeightHParams([4], WeightInit.Constant(3.0), dtype=jnp.int32),
    )
    self.create_variable(
      'mean',
      WeightHParams([2], WeightInit.Constant(0.0)),
      trainable=False,
    )

  def __call__(self, x):
    self.add_summary('x', x.sum())
    self.add_aux_loss('y', 2 * x.sum())
    if not self.do_eval:
      self.update_var('mean', self.theta.mean + 1)
    return x * self.theta.w.sum()


def _init(config, x=None):
  """Returns a layer and its first variables, boxed."""
  layer = config.Instantiate()
  x = jnp.ones(2) if x is None else x
  return layer, layer.init_boxed({PARAMS: jax.random.key(0)}, x)


def test_a_weight_is_created_as_declared():
  _, variables = _init(Everything.config(dtype=jnp.bfloat16))
  box = variables[PARAMS]['w']
  assert box.value.shape == (2, 3) and box.value.dtype == jnp.bfloat16
  assert (box.value == 1.5).all()
  assert box.meta.shape == (2, 3)
  assert box.meta.collections == ('mine',)
  assert box.meta.tensor_split_dims_mapping == ['data', None]
  assert variables[PARAMS]['table'].value.dtype == jnp.int32
  assert set(variables[NON_TRAINABLE]) == {'mean'}


def test_a_weight_without_a_first_value_takes_the_layers():
  config = Child.config(dims=3, params_init=WeightInit.Constant(4.0))
  _, variables = _init(config, jnp.ones(3))
  assert (variables[PARAMS]['w'].value == 4).all()


@pytest.mark.parametrize('given', [lambda v: v, base_layer.unbox])
def test_a_weight_of_another_shape_is_refused(given):
  _, variables = _init(Child.config(dims=2))
  layer = Child.config(dims=3).Instantiate()
  with pytest.raises(
    flax.errors.ScopeParamShapeError, match=r'shape \(3,\), but .* shape \(2,\)'
  ):
    layer.apply(given(variables), jnp.ones(3))


def test_what_is_there_is_not_drawn_anew():
  drawn = []

  class Counted(WeightInit):
    def __call__(self, key, shape, dtype):
      drawn.append(shape)
      return super().__call__(key, shape, dtype)

  config = Child.config(dims=3, params_init=Counted('constant', 4.0))
  layer, variables = _init(config, jnp.ones(3))
  assert drawn == [(3,)]
  y = jax.jit(layer.apply)(variables, jnp.ones(3))
  assert (y == 4).all() and drawn == [(3,)]


def test_unbox_opens_every_box():
  _, variables = _init(Everything.config())
  values = base_layer.unbox(variables)
  assert not any(
    map(
      base_layer.is_boxed, jax.tree.leaves(values, is_leaf=base_layer.is_boxed)
    )
  )
  np.testing.assert_array_equal(values[PARAMS]['w'], np.full((2, 3), 1.5))


@pytest.mark.parametrize(
  'given',
  [
    lambda variables: variables,
    base_layer.unbox,
    lambda variables: jax.tree.map(np.asarray, base_layer.unbox(variables)),
  ],
  ids=['boxed', 'unboxed', 'numpy'],
)
def test_theta_is_in_the_dtype_of_the_computation(given):
  layer, variables = _init(Everything.config(fprop_dtype=jnp.bfloat16))
  bound = layer.bind(given(variables))
  assert bound.theta.w.dtype == jnp.bfloat16
  # Arrays of numpy would compute in single precision here.
  assert (0.5 * bound.theta.w).dtype == jnp.bfloat16
  assert bound.theta.mean.dtype == jnp.bfloat16
  assert bound.theta.table.dtype == jnp.int32
  assert layer.compute_dtype == jnp.bfloat16 and layer.dtype == jnp.float32


def test_an_unknown_weight_is_an_error_with_the_near_name():
  layer, variables = _init(Everything.config())
  with pytest.raises(
    errors.UserError, match="Everything has no weight 'tabel'.*mean: table"
  ):
    _ = layer.bind(variables).theta.tabel


class Fanned(BaseLayer):
  """A weight whose inputs are its last two dimensions."""

  def setup(self):
    init = WeightInit.UniformUnitScalingFanAvg(1.0)
    axes = dict(fan_in_axes=[-2, -1], fan_out_axes=[0])
    self.create_variable('w', WeightHParams([50, 40, 30], init, **axes))

  def __call__(self):
    return self.theta.w


def test_the_dimensions_that_are_inputs_decide_the_first_value():
  w, _ = Fanned.config().Instantiate().init_with_output(jax.random.key(0))
  bound = np.sqrt(6 / (40 * 30 + 50))
  assert 0.99 * bound < abs(w).max() <= bound


class Mistaken(BaseLayer):
  """Creates the given weights and children."""

  weight: WeightHParams = WeightHParams([2])
  twice: bool = False
  late: bool = False
  child_tpl: Config = sub_config_field(Child)

  def setup(self):
    self.create_variable('w', self.weight)
    if self.twice:
      self.create_variable('w', self.weight)

  def __call__(self, x):
    if self.late:
      self.create_child('child', self.child_tpl, dims=2)
    return x * self.theta.w


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(twice=True), 'Mistaken.w was created twice'),
    (dict(late=True), "Mistaken creates the child 'child' outside of `setup`"),
    (
      dict(weight=WeightHParams([2, -1])),
      r'Mistaken.w has the shape \(2, -1\); expected positive',
    ),
    (dict(weight=WeightHParams([0])), r'Mistaken.w has the shape \(0,\)'),
    (
      dict(weight=WeightHParams([2], tensor_split_dims_mapping=['a', None])),
      r"Mistaken.w has 1 dim.* is \('a', None\); expected one mesh axis",
    ),
  ],
)
def test_mistakes_in_a_layer_are_named(fields, message):
  layer = Mistaken.config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed({PARAMS: jax.random.key(0)}, jnp.ones(2))


def test_children_inherit_what_their_templates_leave_open():
  parent = Parent.config(dtype=jnp.bfloat16, fprop_dtype=jnp.float16)
  layer, variables = _init(parent, jnp.ones(2, jnp.float16))
  assert set(variables[PARAMS]) == {'one', 'more_0', 'more_1'}
  bound = layer.bind(variables)
  for child in (bound.one, *bound.more):
    assert child.theta.w.dtype == jnp.float16
  for weights in variables[PARAMS].values():
    assert weights['w'].value.dtype == jnp.bfloat16


def test_children_keep_what_their_templates_say():
  parent = Parent.config(dtype=jnp.bfloat16)
  parent.child_tpl.set(dtype=jnp.float32)
  _, variables = _init(parent)
  assert variables[PARAMS]['one']['w'].value.dtype == jnp.float32


def test_children_have_weights_of_their_own():
  _, variables = _init(Parent.config())
  weights = [v['w'].value for v in variables[PARAMS].values()]
  assert not np.array_equal(weights[0], weights[1])
  assert not np.array_equal(weights[1], weights[2])


@pytest.mark.parametrize(
  ('parent', 'child', 'skipped'),
  [(None, None, False), (True, None, True), (True, False, False)],
)
def test_skip_lp_regularization_marks_the_weights(parent, child, skipped):
  config = Parent.config(skip_lp_regularization=parent)
  if child is not None:
    config.child_tpl.set(skip_lp_regularization=child)
  _, variables = _init(config)
  collections = variables[PARAMS]['more_1']['w'].meta.collections
  assert (SKIP_LP_REGULARIZATION in collections) == skipped


def test_eval_mode_holds_while_it_is_entered():
  layer = Child.config(dims=1).Instantiate()
  assert not layer.do_eval
  with base_layer.eval_mode():
    assert layer.do_eval
    with base_layer.eval_mode(False):
      assert not layer.do_eval
    assert layer.do_eval
  assert not layer.do_eval
  with pytest.raises(RuntimeError), base_layer.eval_mode():
    raise RuntimeError
  assert not layer.do_eval


def _first_values(config):
  """Returns a layer and its unboxed weights, without its outputs."""
  layer, variables = _init(config)
  variables = base_layer.unbox(variables)
  return layer, {c: variables[c] for c in (PARAMS, NON_TRAINABLE)}


def test_summaries_and_aux_losses_are_collected_where_asked_for():
  layer, variables = _first_values(Everything.config())
  x = jnp.arange(2.0)
  _, updates = layer.apply(
    variables, x, mutable=[SUMMARIES, AUX_LOSS, NON_TRAINABLE]
  )
  assert updates[SUMMARIES]['x'] == Summary(1.0, SummaryType.SCALAR)
  assert updates[AUX_LOSS] == {'y': AuxLossStruct(2.0, 1.0)}
  with base_layer.eval_mode():
    assert layer.apply(variables, x).shape == (2,)


class Repeats(BaseLayer):
  def __call__(self):
    for value in (1.0, 2.0):
      self.add_summary('x', value)
      self.add_aux_loss('y', value, 0.5)


def test_the_last_summary_holds_and_aux_losses_add_up():
  updates = (
    Repeats.config().Instantiate().apply({}, mutable=[SUMMARIES, AUX_LOSS])
  )
  assert updates[1] == {
    SUMMARIES: {'x': Summary(2.0, SummaryType.SCALAR)},
    AUX_LOSS: {'y': AuxLossStruct(3.0, 1.0)},
  }


def test_a_weight_that_is_not_trained_is_updated_once_it_is_initialised():
  layer, variables = _first_values(Everything.config())
  assert (variables[NON_TRAINABLE]['mean'] == 0).all()
  _, updates = layer.apply(variables, jnp.ones(2), mutable=[NON_TRAINABLE])
  assert (updates[NON_TRAINABLE]['mean'] == 1).all()


def test_an_updated_weight_stays_in_its_box():
  layer, variables = _init(Everything.config())
  _, updates = layer.apply(variables, jnp.ones(2), mutable=[NON_TRAINABLE])
  assert base_layer.is_boxed(updates[NON_TRAINABLE]['mean'])


class Noise(BaseLayer):
  def __call__(self):
    return jax.random.normal(self.next_prng_key()), jax.random.normal(
      self.next_prng_key()
    )


def test_each_key_is_fresh_and_reproducible():
  layer = Noise.config().Instantiate()
  one, other = layer.apply({}, rngs={RANDOM: jax.random.key(1)})
  assert one != other
  assert layer.apply({}, rngs={RANDOM: jax.random.key(1)}) == (one, other)


def test_a_stacked_axis_is_not_split():
  _, variables = _init(Everything.config())
  box = variables[PARAMS]['w']
  stacked = box.add_axis(0, {'x_times': 4})
  assert stacked.meta.tensor_split_dims_mapping == (None, 'data', None)
  unstacked = stacked.remove_axis(0, {})
  assert unstacked.meta.tensor_split_dims_mapping == ('data', None)


class Flops(BaseLayer):
  """Defines `fprop`, as the older documents do."""

  def fprop(self, x):
    return 2 * x


class Pair(BaseLayer):
  """Two children of templates that may be one."""

  a_tpl: Config = sub_config_field(Child)
  b_tpl: Config = sub_config_field(Child)
  dims: int = 2

  def setup(self):
    self.create_child('a', self.a_tpl, dims=self.dims)
    self.create_child('b', self.b_tpl, dims=self.dims)

  def __call__(self, x):
    return self.b(self.a(x))


class Family(BaseLayer):
  """Separate pairs, below which templates may be shared."""

  one_tpl: Config = sub_config_field(Pair)
  two_tpl: Config = sub_config_field(Pair)

  def setup(self):
    self.create_child('one', self.one_tpl)
    self.create_child('two', self.two_tpl)

  def __call__(self, x):
    return self.two(self.one(x))


def _paths(layer) -> list[str]:
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, jnp.ones([2]))
  leaves = jax.tree_util.tree_leaves_with_path(base_layer.unbox(variables))
  return [
    jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in leaves
  ]


def test_a_layer_may_define_fprop_instead_of_call():
  layer = Flops.config().Instantiate()
  assert layer.apply({}, 3.0) == 6.0
  assert layer.apply({}, 3.0, method='fprop') == 6.0


def test_one_config_in_two_places_is_one_layer():
  tpl = Child.config()
  pair = Pair.config(a_tpl=tpl, b_tpl=tpl)
  assert _paths(pair.Instantiate()) == ['params/a/w']
  copied = Pair.config(a_tpl=tpl, b_tpl=tpl.clone())
  assert _paths(copied.Instantiate()) == ['params/a/w', 'params/b/w']


def test_one_config_below_different_parents_is_one_layer():
  tpl = Child.config(params_init=WeightInit.Constant(3.0))
  family = Family.config()
  family.one_tpl.b_tpl = tpl
  family.two_tpl.a_tpl = tpl
  layer = family.Instantiate()
  assert _paths(layer) == [
    'params/one/a/w',
    'params/one/b/w',
    'params/two/b/w',
  ]
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, jnp.ones([2]))

  def loss(params):
    return jnp.sum(layer.apply({PARAMS: params}, jnp.ones([2])))

  params = base_layer.unbox(variables)[PARAMS]
  params = jax.tree.map(jnp.ones_like, params)
  params['one']['b']['w'] = jnp.array([3.0, 3.0])
  # The shared weight counts twice: y = 3 * 3 * x, dy/dw = 2 * 3.
  assert loss(params) == 18.0
  gradients = jax.grad(loss)(params)
  np.testing.assert_allclose(gradients['one']['b']['w'], [6.0, 6.0])


def test_a_copy_of_the_whole_keeps_what_is_shared_in_it():
  tpl = Child.config()
  pair = Pair.config(a_tpl=tpl, b_tpl=tpl).clone()
  assert _paths(pair.Instantiate()) == ['params/a/w']


def test_copies_with_one_shared_weight_layer_id_are_one_layer():
  tpl = Child.config(shared_weight_layer_id='mine')
  pair = Pair.config(a_tpl=tpl.clone(), b_tpl=tpl.clone())
  assert _paths(pair.Instantiate()) == ['params/mine/w']


def test_parents_must_agree_on_a_shared_layer():
  tpl = Child.config()
  family = Family.config()
  family.one_tpl.b_tpl = tpl
  family.two_tpl.set(a_tpl=tpl, dims=3)
  with pytest.raises(errors.UserError, match=r'two\.a and one\.b share one'):
    _paths(family.Instantiate())


class Built(BaseLayer):
  """Has children that are built with it."""

  one: Config = base_layer.instance_field(Child)
  two: Config = base_layer.instance_field(Child)

  def __call__(self, x):
    return self.two(self.one(x))


def test_instance_fields_hold_layers_and_share_them():
  tpl = Child.config(dims=2)
  assert _paths(Built.config(one=tpl, two=tpl).Instantiate()) == [
    'params/one/w'
  ]
  two = Built.config(one=tpl, two=tpl.clone()).Instantiate()
  assert _paths(two) == ['params/one/w', 'params/two/w']
  with pytest.raises(
    errors.UserError, match=r'^one\.dims is required by Child'
  ):
    Built.config(two=tpl).Instantiate()


def test_required_fields_are_found_without_data():
  Family.check_required(Family.config())
  family = Family.config()
  family.two_tpl.b_tpl = Parent.config(child_tpl=Everything.config())
  with pytest.raises(errors.UserError, match="has no field 'dims'"):
    Family.check_required(family)


class Careless(BaseLayer):
  """Forgets what its child needs."""

  child_tpl: Config = sub_config_field(Child)

  def setup(self):
    self.create_child('child', self.child_tpl)

  def __call__(self, x):
    return self.child(x)


def test_a_required_field_is_named_by_its_full_path():
  outer = Family.config(two_tpl=Careless.config())
  with pytest.raises(
    errors.UserError, match=r'^two\.child\.dims is required by Child'
  ):
    Family.check_required(outer)


class Split(BaseLayer):
  """Has a weight with a separate field for its sharding."""

  class WeightSharding(BaseLayer.WeightSharding):
    other: tuple | None = None

  def setup(self):
    mapping = self.weight_split_dims_mapping
    self.create_variable(
      'w', WeightHParams([2], tensor_split_dims_mapping=mapping.wt)
    )
    self.create_variable(
      'v', WeightHParams([2], tensor_split_dims_mapping=mapping.other)
    )

  def __call__(self, x):
    return self.shard(x * self.theta.w, self.activation_split_dims_mapping.out)


def test_splits_are_set_by_the_names_of_weights():
  config = Split.config()
  config.weight_split_dims_mapping.wt = ['data']
  config.weight_split_dims_mapping.other = ['mdl']
  with pytest.raises(errors.UserError, match='did you mean'):
    config.weight_split_dims_mapping.othr = None
  layer = config.Instantiate()
  params = layer.init_boxed({PARAMS: jax.random.key(0)}, jnp.ones([2]))[PARAMS]
  assert params['w'].meta.tensor_split_dims_mapping == ['data']
  assert params['v'].meta.tensor_split_dims_mapping == ['mdl']


def test_an_activation_is_split_where_there_is_a_mesh():
  config = Split.config()
  config.activation_split_dims_mapping.out = ['data']
  layer = config.Instantiate()
  variables = base_layer.unbox(
    layer.init_boxed(jax.random.key(0), jnp.ones([2]))
  )
  mesh = jax.make_mesh((1,), ('data',), (jax.sharding.AxisType.Auto,))
  with jax.set_mesh(mesh):
    jaxpr = jax.make_jaxpr(layer.apply)(variables, jnp.ones([2]))
    assert 'sharding_constraint' in str(jaxpr)
    config.activation_split_dims_mapping.out = ['dta']
    with pytest.raises(errors.UserError, match="Split: .*'dta'"):
      layer.apply(variables, jnp.ones([2]))
  config.activation_split_dims_mapping.out = ['data']
  assert 'sharding_constraint' not in str(
    jax.make_jaxpr(layer.apply)(variables, jnp.ones([2]))
  )


class Cached(BaseLayer):
  """Counts its calls in its decode state."""

  def init_states(self):
    self.update_decode_state('count', jnp.zeros([], jnp.int32))

  def __call__(self):
    self.update_decode_state('count', self.get_decode_state('count') + 1)


def test_decode_state_lasts_from_call_to_call():
  layer = Cached.config().Instantiate()
  cache = [base_layer.DECODE_CACHE]
  with pytest.raises(errors.UserError, match='init_states'):
    layer.apply({}, mutable=cache)
  _, state = layer.apply({}, method='init_states', mutable=cache)
  for _ in range(3):
    _, state = layer.apply(state, mutable=cache)
  assert state[base_layer.DECODE_CACHE]['count'] == 3


def test_fields_that_children_inherit_are_copied():
  source = base_layer.BaseLayer.config(fprop_dtype=jnp.bfloat16)
  source.ici_mesh_shape = [2, 1]
  target = base_layer.BaseLayer.config(ici_mesh_shape=[1, 1])
  base_layer.BaseLayer.copy_base_hparams(source, target)
  assert target.fprop_dtype == jnp.bfloat16
  assert target.ici_mesh_shape == [1, 1]
  assert not config.is_set(target, 'dtype')
