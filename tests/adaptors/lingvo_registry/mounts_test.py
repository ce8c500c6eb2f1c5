"""Tests of `lingvo_registry.mounts`: real folders, real installed metadata."""

import pathlib

import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


@pytest.fixture(name='site')
def _site(tmp_path) -> pathlib.Path:
  """Returns a folder with a checkout and an installed package."""
  files = {
    'checkout/lingvo/tasks/lm/params/__init__.py': '',
    'checkout/lingvo/tasks/lm/params/both.py': "FROM = 'checkout'",
    'checkout/lingvo/tasks/lm/params/ours.py': "FROM = 'checkout'",
    'checkout/lingvo/tasks/lm/params/ours_test.py': '',
    'checkout/lingvo/tasks/lm/params/sub/__init__.py': '',
    'checkout/lingvo/tasks/lm/params/sub/deep.py': "FROM = 'checkout'",
    'checkout/lingvo/tasks/lm/model.py': "FROM = 'checkout'",
    'checkout/lingvo/tasks/lm/ctc_model.py': "FROM = 'checkout'",
    'checkout/lingvo/tasks/lm/more/deep.py': "FROM = 'checkout'",
    'checkout/lingvo/core/own_layers.py': "FROM = 'checkout'",
    'checkout/lingvo/core/no_code/words.txt': '',
    'checkout/lingvo/tasks/mine/__init__.py': '',
    'checkout/lingvo/tasks/mine/params/first.py': (
      'from lingvo.tasks.mine import model\nFROM = model.FROM'
    ),
    'checkout/lingvo/tasks/mine/model.py': "FROM = 'checkout model'",
    'checkout/lingvo/tasks/plain/model.py': '',
    'installed/__init__.py': "raise RuntimeError('imported')",
    'package/__init__.py': '',
    'package/lm/__init__.py': '',
    'package/lm/both.py': "FROM = 'package'",
    'package/lm/theirs.py': "FROM = 'package'",
    'package/new/__init__.py': '',
    'package/new/fresh.py': "FROM = 'package'",
  }
  for name, text in files.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  native_library.add_distribution(
    tmp_path,
    '[pax_compat.lingvo_params]\nlm = package.lm\nnew = package.new\n',
  )
  return tmp_path


_MOUNT = """
import importlib, importlib.util, pathlib, sys
from absl import logging
logging.set_verbosity('info')
from adaptors.lingvo_registry import mounts
checkout = pathlib.Path(sys.path[1]) / 'checkout'
def origin(name):
  return importlib.import_module('lingvo.tasks.' + name).FROM
"""


def _run(site, program, *, fresh=False):
  return native_library.run_python(
    _MOUNT + program, site, cache=site / 'cache', fresh=fresh
  )


@pytest.mark.parametrize(
  'order',
  [
    ('mount_entry_points()', 'mount_checkout(checkout)'),
    ('mount_checkout(checkout)', 'mount_entry_points()'),
  ],
)
def test_the_union_in_which_the_checkout_wins(site, order):
  out, log = _run(
    site,
    f"""
for _ in range(2):
  mounts.{order[0]}
  mounts.{order[1]}
names = ['lm.params.both', 'lm.params.ours', 'lm.params.theirs',
         'lm.params.sub.deep', 'mine.params.first', 'new.params.fresh']
print([origin(n) for n in names])
print([m for m in ('tensorflow', 'package') if m in sys.modules])
import lingvo.tasks.lm
print('checkout' in lingvo.tasks.lm.__path__[0])
""",
    fresh=True,
  )
  assert out == [
    "['checkout', 'checkout', 'package', 'checkout', 'checkout model',"
    " 'package']",
    '[]',
    'False',
  ]
  (line,) = [x for x in log.splitlines() if 'lm.both is ' in x]
  used, unused = line.partition('; not ')[::2]
  assert 'checkout' in used and 'package' in unused


def test_modules_that_the_installed_lingvo_lacks(site):
  out, log = _run(
    site,
    """
mounts.mount_checkout(checkout)
names = ['tasks.lm.ctc_model', 'tasks.lm.more.deep', 'core.own_layers']
print([importlib.import_module('lingvo.' + n).FROM for n in names])
print(importlib.util.find_spec('lingvo.core.no_code'))
print('checkout' in importlib.util.find_spec('lingvo.tasks.lm.model').origin)
""",
  )
  assert out == ["['checkout', 'checkout', 'checkout']", 'None', 'False']
  assert 'lingvo.tasks.lm.ctc_model is in the checkout only' in log
  [changed] = [x for x in log.splitlines() if 'installed Lingvo is used' in x]
  assert changed.endswith('differ: tasks/lm/model.py')


def test_a_later_mount_reaches_an_imported_package(site):
  out, _ = _run(
    site,
    """
mounts.mount_entry_points()
print(origin('lm.params.theirs'))
mounts.mount_checkout(checkout)
print(origin('lm.params.ours'), origin('lm.params.both'))
""",
  )
  assert out == ['package', 'checkout checkout']


def test_the_modules_are_listed_unimported(site):
  out, _ = _run(
    site,
    """
mounts.mount_entry_points()
mounts.mount_checkout(checkout)
root = pathlib.Path(sys.path[1])
for name, path in mounts.params_modules().items():
  if root in path.parents:  # Not what the installed distribution mounts.
    print(name, path.relative_to(root))
print([m for m in ('tensorflow', 'lingvo', 'package') if m in sys.modules])
""",
    fresh=True,
  )
  root = 'checkout/lingvo/tasks'
  assert out == [
    f'lm.both {root}/lm/params/both.py',
    f'lm.ours {root}/lm/params/ours.py',
    f'lm.sub.deep {root}/lm/params/sub/deep.py',
    'lm.theirs package/lm/theirs.py',
    f'mine.first {root}/mine/params/first.py',
    'new.fresh package/new/fresh.py',
    '[]',
  ]


def test_invalid_folders_are_refused(site):
  out, _ = _run(
    site,
    """
from pax_compat import errors
other = checkout.parent / 'other'
(other / 'lingvo/tasks/lm/params').mkdir(parents=True)
def attempt(path):
  try:
    mounts.mount_checkout(path)
  except errors.UserError as e:
    print(e)
attempt('/nowhere')
attempt(checkout / 'lingvo')
attempt(checkout.parent / 'package')
mounts.mount_checkout(checkout)
attempt(other)
""",
  )
  assert len(out) == 4
  assert 'does not exist' in out[0]
  assert out[1].endswith(f'did you mean: {site}/checkout?')
  assert 'expected a folder that contains lingvo/tasks/<task>/params' in out[2]
  assert 'is already mounted' in out[3]


def test_an_entry_point_without_a_package_is_refused(site):
  (site / 'declares-1.dist-info' / 'entry_points.txt').write_text(
    '[pax_compat.lingvo_params]\nlm = package.nothing\n'
  )
  out, _ = _run(
    site,
    """
from pax_compat import errors
try:
  mounts.mount_entry_points()
except errors.UserError as e:
  print(e)
""",
  )
  assert 'lm = package.nothing' in out[0] and 'of declares' in out[0]
