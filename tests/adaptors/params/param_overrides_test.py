"""Tests of `adaptors.params.param_overrides`, on real Lingvo Params.

Most need no TensorFlow: `lingvo.core.hyperparams` does without.
"""

import collections
import dataclasses
import enum
import sys

import pytest

from adaptors import lingvo_runtime
from adaptors.params import param_overrides
from pax_compat import errors

hyperparams = pytest.importorskip('lingvo.core.hyperparams')

Shape = collections.namedtuple('Shape', ['height', 'width'])


class Color(enum.Enum):
  RED = 1
  GREEN = 2


@dataclasses.dataclass
class Options:
  rate: float = 0.5
  name: str = 'a'


def _function():
  pass


def _other_function():
  pass


def _params(**fields):
  p = hyperparams.Params()
  for name, value in fields.items():
    p.Define(name, value, '')
  return p


@pytest.fixture
def params():
  return _params(
    task=_params(
      name='lm',
      dims=4,
      rate=0.1,
      flag=False,
      nothing=None,
      sizes=[1, 2],
      pair=(1, 2),
      table={'a': 1},
      color=Color.RED,
      shape=Shape(1, 2),
      options=Options(),
      cls=Color,
      fn=_function,
      blob=object(),
      layers=[_params(dims=1), _params(dims=2)],
      by_name={'enc': _params(dims=1)},
      named=[('first', _params(dims=1))],
      train=_params(init_from_checkpoint_override=None),
    )
  )


@pytest.mark.parametrize(
  'field, text, expected',
  [
    ('name', 'plain text: with a colon', 'plain text: with a colon'),
    ('name', "'quoted; text'", 'quoted; text'),
    ('name', '"two\nlines"', 'two\nlines'),
    ('name', r"'it\'s a \\ '", "it's a \\ "),
    ('name', "it's", "it's"),
    ('name', '', ''),
    ('name', "['a', 'b']", ['a', 'b']),
    ('name', '[a-z]', '[a-z]'),
    ('dims', '8', 8),
    ('rate', '1e-3', 1e-3),
    ('rate', '2', 2.0),
    ('flag', 'True', True),
    ('flag', 'false', False),
    ('nothing', 'NoneType', None),
    ('nothing', 'true', True),
    ('nothing', '3', 3),
    ('nothing', "'3'", '3'),
    ('nothing', '[1, None]', [1, None]),
    ('nothing', f'type/{__name__}/Options', Options),
    ('sizes', '[3, 4, 5]', [3, 4, 5]),
    ('sizes', 'NoneType', None),
    ('pair', '(3, "x")', (3, 'x')),
    ('table', "{'b': 2}", {'b': 2}),
    ('color', 'Color.GREEN', Color.GREEN),
    ('shape', "{'height': 3, 'width': 4}", Shape(3, 4)),
    ('options', "{'rate': 0.25}", Options(rate=0.25)),
    ('options', "{'name': 'b'}", Options(name='b')),
    ('cls', f'type/{__name__}/Options', Options),
    ('cls', 'NoneType', None),
    ('fn', f'type/{__name__}/_other_function', _other_function),
    ('layers[1].dims', '7', 7),
    ("by_name['enc'].dims", '7', 7),
    ('by_name["enc"].dims', '7', 7),
    ('named[first].dims', '7', 7),
    ('train.init_from_checkpoint_override', '/a/ckpt-1', '/a/ckpt-1'),
  ],
)
def test_text_gives_the_value(params, field, text, expected):
  param_overrides.apply_override(params, f'task.{field} : {text}')
  value = {
    'layers[1].dims': lambda: params.task.layers[1].dims,
    "by_name['enc'].dims": lambda: params.task.by_name['enc'].dims,
    'by_name["enc"].dims': lambda: params.task.by_name['enc'].dims,
    'named[first].dims': lambda: params.task.named[0][1].dims,
  }.get(field, lambda: params.Get(f'task.{field}'))()
  assert value == expected
  assert type(value) is type(expected)


def test_pairs_are_separated_by_semicolons_and_lines(params):
  text = """
    # A comment: with a colon.
    task.dims : 8; task.rate:0.5 ;
    task.name : "a;b" ; task.flag : True
  """
  param_overrides.apply_override(params, text)
  task = params.task
  assert (task.dims, task.rate, task.name, task.flag) == (8, 0.5, 'a;b', True)


def test_an_empty_text_changes_nothing(params):
  before = params.Copy()
  param_overrides.apply_override(params, ' ;\n# nothing\n')
  assert params.ToText() == before.ToText()


@pytest.mark.parametrize(
  'text, message',
  [
    ('task.dimz : 8', r"'task.dimz'; did you mean: task.dims"),
    ('tusk.dims : 8', 'did you mean: task.dims'),
    ('task.layers[2].dims : 8', r'did you mean: task.layers\[\d\].dims'),
    ('task.dims', '`path : value`'),
    (': 3', '`path : value`'),
    ("task.name : 'open", 'same quote'),
    ("task.name : 'a' b", 'same quote'),
    ('task.dims : 8.5', r"task.dims cannot be '8.5': expected an int.*int 4"),
    ('task.rate : fast', 'expected a float'),
    ('task.flag : maybe', 'expected a bool'),
    ('task.nothing : some words', 'quotes'),
    ('task.sizes : 3', 'a list of literals'),
    ('task.sizes : [3', 'a list of literals'),
    ('task.table : [1]', 'a dict of literals'),
    ('task.color : Color.GREE', 'a Color, such as Color.GREEN'),
    ("task.shape : {'depth': 1}", 'Shape: height, width'),
    ("task.options : {'rate': 'x'}", 'a float'),
    (f'task.cls : type/{__name__}/Optons', 'did you mean: Options'),
    (f'task.cls : type/{__name__}/_function', 'a name in'),
    ('task.cls : Options', 'type/<module>/<name>'),
    ('task.cls : type/antigravity/x', "'antigravity' is not"),
    ('task.blob : 3', 'a object'),
    ('task.train : 3', 'one by one'),
    ("task.nothing : __import__('os')", 'a literal'),
  ],
)
def test_a_mistake_is_named_and_changes_nothing(params, text, message):
  before = params.Copy()
  # The first pair is right; it must not be applied by itself.
  with pytest.raises(errors.UserError, match=message):
    param_overrides.apply_override(params, f'task.rate : 0.75; {text}')
  assert params.ToText() == before.ToText()


def test_nothing_is_imported_for_a_class(params):
  with pytest.raises(errors.UserError):
    param_overrides.apply_override(params, 'task.cls : type/antigravity/fly')
  assert 'antigravity' not in sys.modules


@pytest.fixture(scope='module')
def model_params():
  """Returns Params of a real Lingvo model."""
  model = lingvo_runtime.module('lingvo.tasks.lm.model')
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  return base_model.SingleTaskModel.Params(model.LanguageModel.Params())


@pytest.mark.parametrize(
  'text',
  [
    'task.train.learning_rate : 0.5;task.lm.vocab_size : 76',
    'task.dtype : float16',
    'task.lm.softmax.params_init.method : uniform',
    'task.train.lr_schedule.boundaries : [1, 2, 3]',
    'task.train.optimizer.cls : type/lingvo.core.optimizer/SGD',
    'task.train.init_from_checkpoint_override : /a/ckpt-1',
    'task.train.l2_regularizer_weight : 0.0\ntask.eval.samples_per_summary : 3',
  ],
)
def test_override_equals_that_of_lingvo(model_params, text):
  ours, theirs = model_params.Copy(), model_params.Copy()
  param_overrides.apply_override(ours, text)
  theirs.FromText(
    text.replace(';', '\n'),
    type_overrides={'task.train.init_from_checkpoint_override': 'str'},
  )
  assert ours == theirs
  assert ours != model_params


def test_lingvos_own_text_is_readable(model_params):
  """Everything of a whole model that its own reader takes comes back."""
  text = model_params.ToText()
  theirs = set()
  for line in text.splitlines():
    try:
      model_params.Copy().FromText(line)
      theirs.add(line)
    except Exception:  # noqa: BLE001 (what it cannot read, it fails at)
      continue
  params = model_params.Copy()
  param_overrides.apply_override(params, '\n'.join(sorted(theirs)))
  assert len(theirs) > 500
  assert params.ToText() == text


def test_an_unknown_dtype_names_the_nearest(model_params):
  with pytest.raises(errors.UserError, match='such as float32'):
    param_overrides.apply_override(model_params.Copy(), 'task.dtype : flaot32')


def test_a_class_that_is_only_called_dtype_has_no_text():
  class DType:
    pass

  with pytest.raises(errors.UserError, match='code that sets it'):
    param_overrides.apply_override(_params(kind=DType()), 'kind : float32')
