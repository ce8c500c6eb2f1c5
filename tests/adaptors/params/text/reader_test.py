"""Tests of `adaptors.params.text.reader`, on texts that Lingvo writes."""

import collections
import dataclasses
import enum
import gzip

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.params.text import reader
from pax_compat import errors

hyperparams = pytest.importorskip('lingvo.core.hyperparams')
text_format = pytest.importorskip('google.protobuf.text_format')

FORMS = ('.pbtxt', '.txt')

Shape = collections.namedtuple('Shape', ['height', 'width'])


class Color(enum.Enum):
  RED = 1
  GREEN = 2


@dataclasses.dataclass
class Options:
  rate: float = 0.5
  name: str = 'a'


def swish(x):
  return x


class Part:
  @classmethod
  def Params(cls):
    p = hyperparams.InstantiableParams(cls)
    p.Define('dims', 1, '')
    p.Define('sizes', [1, 2], '')
    return p


class Layer:
  """Has a field of every kind."""

  @classmethod
  def Params(cls):
    p = hyperparams.InstantiableParams(cls)
    init = hyperparams.Params()
    init.Define('method', 'xavier', '')
    init.Define('scale', 2**-0.5, '')
    init.Freeze()
    for name, default in dict(
      name='',
      flag=False,
      dims=4,
      rate=1.0,
      scale=2**-0.5,
      nothing=None,
      dtype=None,
      activation=None,
      part_cls=Part,
      color=Color.RED,
      shape=Shape(1, 2),
      options=Options(),
      pair=(1, 2),
      sizes=[1, 2],
      table={'a': 1},
      texts=[],
      device_mesh=None,
      device_mesh_shape=None,
      init=init,
      part=Part.Params(),
      parts=[],
      parts_by_name={},
      named_parts=[],
      anything=hyperparams.Params(),
      inner=lambda x: x,
    ).items():
      p.Define(name, default, '')
    return p


def _layer(**fields):
  return Layer.Params().Set(**{'name': 'layer', **fields})


def _text(params, form):
  if form == '.txt':
    return params.ToText()
  return text_format.MessageToString(params.ToProto(), as_utf8=True)


def _read(params, form, **options):
  return reader.read_text(
    _text(params, form), form=form, packages=[__name__], **options
  )


def _anything(**fields):
  p = hyperparams.Params()
  for name, value in fields.items():
    p.Define(name, value, '')
  return p


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize(
  'fields',
  [
    {},
    dict(flag=True, dims=-7, rate=0.1, scale=1e-30, nothing=False),
    dict(rate=3, dims=0.5, scale=float('inf'), nothing=12),
    dict(name='it\'s "quoted"; a : b\n  c : d\\', nothing='[1, 2]'),
    dict(name='', nothing='NoneType', texts=['a;b', "it's\n", '...']),
    dict(activation=swish, part_cls=Layer),
    dict(color=Color.GREEN, shape=Shape(3, 4)),
    dict(options=Options(rate=0.25, name='b')),
    dict(pair=(3, 4), table={'b': 2, 'c': None}, sizes=[[1, 2], [3]]),
    dict(pair=[], sizes=[], part=Part.Params().Set(sizes=[])),
    dict(device_mesh=np.arange(8).reshape(2, 4)),
    dict(
      device_mesh=np.arange(2048).reshape(64, 32), device_mesh_shape=[64, 32]
    ),
    dict(part=Part.Params().Set(dims=9), nothing=Part.Params()),
    dict(part=None, init=None),
    dict(parts=[Part.Params().Set(dims=i) for i in range(12)]),
    dict(named_parts=[('b.1', Part.Params()), ('a', Part.Params())]),
    dict(parts_by_name={'x': Part.Params(), 'y.z [0]': Part.Params()}),
    dict(texts=[Part.Params(), None]),
    dict(anything=_anything(en=Part.Params(), de=Part.Params().Set(dims=5))),
  ],
  ids=lambda fields: '-'.join(fields) or 'defaults',
)
def test_what_lingvo_writes_is_read_again(fields, form):
  params = _layer(**fields)
  read = _read(params, form)
  assert read.params.ToText() == params.ToText()
  if form == '.pbtxt':
    assert not read.defaulted and not read.emptied
    assert read.params.ToProto() == params.ToProto()


@pytest.mark.parametrize('form', FORMS)
def test_values_have_their_own_types(form):
  tf = lingvo_runtime.module('tensorflow')
  array = np.arange(6).reshape(2, 3)
  params = _layer(dtype=tf.bfloat16, device_mesh=array, activation=swish)
  read = _read(params, form).params
  assert read.cls is Layer and read.part.cls is Part
  assert read.dtype is tf.bfloat16
  assert read.activation is swish
  assert isinstance(read.shape, Shape) and isinstance(read.options, Options)
  assert isinstance(read.pair, tuple) and isinstance(read.sizes, list)
  np.testing.assert_array_equal(read.device_mesh, array)
  assert read.inner.__name__ == '<lambda>'


@pytest.mark.parametrize('form', FORMS)
def test_digits_that_32_bits_lose_come_from_the_default(form):
  read = _read(_layer(rate=0.1), form).params
  assert read.scale == read.init.scale == 2**-0.5
  assert read.rate == 0.1


def test_frozen_params_stay_frozen():
  text = _text(_layer(), '.pbtxt').replace('"xavier"', '"gaussian"')
  read = reader.read_text(text, form='.pbtxt', packages=[__name__]).params
  assert read.init.method == 'gaussian'
  assert read.init.IsImmutable()


@pytest.mark.parametrize('form', FORMS)
def test_missing_fields_hold_defaults(form):
  params = _layer(dims=5)
  params.Delete('rate', 'part.dims')
  read = _read(params, form)
  assert read.params.rate == 1.0
  assert {'rate', 'part.dims'} <= set(read.defaulted)


def test_lists_that_plain_text_lacks_are_empty():
  read = _read(_layer(sizes=[], part=Part.Params().Set(sizes=[])), '.txt')
  assert read.params.sizes == read.params.part.sizes == []
  assert set(read.emptied) == {'sizes', 'part.sizes'}


@pytest.mark.parametrize('form', FORMS)
def test_fields_that_the_class_has_no_more(form):
  params = _layer()
  params.Define('dimz', 3, '')
  params.part.Define('per_step_infeed', False, '')
  with pytest.raises(errors.UserError) as error:
    _read(params, form)
  message = str(error.value)
  assert "dimz: Layer has no field 'dimz'; did you mean: dims" in message
  assert 'part.per_step_infeed: Part has no field' in message
  read = _read(params, form, drop=['*.per_step_infeed', 'dimz'])
  assert set(read.dropped) == {'dimz', 'part.per_step_infeed'}
  assert read.params.ToText() == _layer().ToText()


@pytest.mark.parametrize(
  'type_name, message',
  [
    ('os/system', "cls: 'os' is not in the allowed packages"),
    ('lingvoid/Layer', "'lingvoid' is not in the allowed packages"),
    ('lingvo.core.layerz/FCLayer', 'module lingvo.core.layerz not found'),
    ('lingvo.core.layers/FCLayr', 'did you mean: FCLayer'),
    # Imported there, but of another module: not what Lingvo writes.
    ('lingvo.core.layers/partial', 'defines no class or function'),
    ('lingvo.core.layers/np', 'defines no class or function'),
    ('lingvo.core.base_layer/BaseLayerMeta', 'its Params() fails'),
    ('Layer', 'is not in the allowed packages'),
    ('lingvo.core.py_utils/GetShape', 'is not a class'),
  ],
)
@pytest.mark.parametrize('form', FORMS)
def test_only_known_classes_are_looked_up(type_name, message, form):
  text = {
    '.pbtxt': 'items { key: "cls" value { type_val: "%s" } }',
    '.txt': 'cls : type/%s',
  }[form]
  with pytest.raises(errors.UserError) as error:
    reader.read_text(text % type_name, form=form)
  assert message in str(error.value)


def test_every_issue_is_told_with_its_path():
  params = _layer(
    nothing=object(),
    part=Part.Params().Set(dims=object()),
    device_mesh=np.random.default_rng(0).permutation(4096).reshape(64, 64),
    activation=collections.OrderedDict,
    texts=[lambda x: x],
  )
  with pytest.raises(errors.UserError) as error:
    _read(params, '.pbtxt')
  message = str(error.value)
  for path in ('nothing', 'part.dims', 'device_mesh', 'activation', 'texts[0]'):
    assert f'\n  {path}: ' in message
  assert message.count('\n') == 5


@pytest.mark.parametrize('form', FORMS)
def test_the_caller_gives_what_a_text_does_not_tell(form):
  array = np.random.default_rng(0).permutation(4096).reshape(64, 64)
  params = _layer(device_mesh=array)
  with pytest.raises(errors.UserError, match="value of 'device_mesh'"):
    _read(params, form)
  read = _read(params, form, values={'device_mesh': array})
  assert read.params.device_mesh is array


@pytest.mark.parametrize('form', FORMS)
def test_a_value_for_no_field_is_a_mistake(form):
  with pytest.raises(errors.UserError, match='part.dimz: a value is given'):
    _read(_layer(), form, values={'part.dimz': 3})


def test_a_model_needs_a_task():
  name = 'lingvo.core.base_model/SingleTaskModel'
  with pytest.raises(errors.UserError, match='task: the model has no task'):
    reader.read_text(f'cls : type/{name}', form='.txt')


def test_pickles_are_not_loaded():
  text = (
    'items { key: "dims" value { symbolic_val: "cos\\nsystem\\n(S\'a\'" } }'
  )
  with pytest.raises(errors.UserError, match='dims: .* pickles are not loaded'):
    reader.read_text(text, form='.pbtxt')


@pytest.mark.parametrize(
  'text, message',
  [
    ('a.b', '2: .* is not of the form'),
    ('a : [1, 2', '2: the value of a does not end'),
    ("a : 'b", '2: the value of a does not end'),
    ('a.b : 1\na : 2', '3: a: it is there twice'),
    ('a : 1\na.b : 2', '3: a.b: it has both a value and fields'),
    ('a..b : 1', '2: a..b: this is not the path'),
  ],
)
def test_errors_in_plain_text_have_lines(text, message):
  with pytest.raises(errors.UserError, match=message):
    reader.read_text('# Params\n' + text, form='.txt')


def test_errors_of_files(tmp_path):
  for name, content, message in [
    ('a.json', '', 'a.json: expected a file of Params'),
    ('empty.txt', '', 'it is empty'),
    ('bad.pbtxt', 'a : b', 'is not the proto text of Params'),
  ]:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(errors.UserError, match=message):
      reader.read_file(path)
  with pytest.raises(errors.UserError, match='none.txt cannot be read'):
    reader.read_file(tmp_path / 'none.txt')


def test_packed_files_are_read(tmp_path):
  path = tmp_path / 'params.pbtxt.gz'
  with gzip.open(path, 'wt') as file:
    file.write(_text(_layer(dims=11), '.pbtxt'))
  assert reader.read_file(path, packages=[__name__]).params.dims == 11


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    (
      'cut.txt.gz',
      gzip.compress(b'x : 1', mtime=0)[:-4],
      'cannot be read: .*ended',
    ),
    (
      'bad.txt.gz',
      gzip.compress(b'x : 1', mtime=0)[:10] + b'z' * 9,
      'cannot be read',
    ),
    ('names.txt', b'a' + b'.a' * 50_000 + b' : 1', 'is nested too deeply'),
    ('lists.txt', b'x : ' + b'[' * 50_000 + b']' * 50_000, 'not a literal'),
  ],
  ids=['cut', 'bad', 'names', 'lists'],
)
def test_damaged_files_are_refused_in_a_line(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=message) as e:
    reader.read_file(path)
  assert len(str(e.value)) < 500


def test_a_model_of_several_tasks():
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  p = base_model.MultiTaskModel.Params()
  for name, weight in (('en', 0.75), ('de', 0.25)):
    p.task_params.Define(name, base_model.BaseTask.Params(), '')
    p.task_probs.Define(name, weight, '')
  read = reader.read_text(_text(p, '.pbtxt'), form='.pbtxt').params
  assert read.ToText() == p.ToText()
  assert read.task_params.de.cls is base_model.BaseTask
