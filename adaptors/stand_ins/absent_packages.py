"""Import-only stand-ins for packages that cannot be installed.

`waymo_open_dataset` has no release for the TensorFlow of Lingvo. Lingvo's Waymo
tasks import it, and use it only for the metrics of decoding. A stand-in can be
imported; using a name of it is an error.

A stand-in is used only if no other finder has the package.
"""

import importlib.abc
import importlib.machinery
import sys
import types

from absl import logging

from pax_compat import errors

# The modules of each package that are stood in for, and what needs them.
_MODULES = {
  'waymo_open_dataset': frozenset(
    {
      'label_pb2',
      'metrics.ops.py_metrics_ops',
      'metrics.python.config_util_py',
      'protos.breakdown_pb2',
      'protos.metrics_pb2',
    }
  ),
}
_NEEDED_FOR = {
  'waymo_open_dataset': 'the average precision of decoded Waymo boxes',
}


def install() -> None:
  """Makes the stand-ins importable. Later calls do nothing.

  They are the last resort: packages on the module search path come first.
  """
  if _finder not in sys.meta_path:
    sys.meta_path.append(_finder)


def is_stand_in(module: types.ModuleType) -> bool:
  """Whether a module is a stand-in."""
  return getattr(module.__spec__, 'loader', None) is _loader


class _Finder(importlib.abc.MetaPathFinder):
  """Finds the stand-ins."""

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a stand-in; None for all other modules.

    Raises:
      ModuleNotFoundError: the package has a stand-in, the module does not.
    """
    package, _, rest = fullname.partition('.')
    if package not in _MODULES:
      return None
    if rest and not is_stand_in(sys.modules[package]):
      return None
    known = _MODULES[package]
    is_package = not rest or any(m.startswith(f'{rest}.') for m in known)
    if not is_package and rest not in known:
      raise ModuleNotFoundError(
        f'{package} is not installed, and its stand-in has no {rest}',
        name=fullname,
      )
    return importlib.machinery.ModuleSpec(
      fullname, _loader, is_package=is_package
    )


class _Loader(importlib.abc.Loader):
  """Fills a stand-in."""

  def create_module(self, spec):
    """Returns None: Python's usual module."""

  def exec_module(self, module):
    """Gives a module that is not a package names that cannot be used."""
    package, _, rest = module.__name__.partition('.')
    if not rest:
      logging.warning(
        '%s is not installed; a stand-in is imported instead. Training and its'
        ' loss do not use it; %s does, and is an error',
        package,
        _NEEDED_FOR[package],
      )
    if rest in _MODULES[package]:
      module.__getattr__ = _refusing(package, module.__name__)


def _refusing(package: str, module: str):
  """Returns the function that is called for each name of a module."""

  def get(name: str):
    if name.startswith('__'):  # Python itself asks for these.
      raise AttributeError(f'module {module!r} has no attribute {name!r}')
    raise errors.UserError(
      f'{module}.{name} is needed for {_NEEDED_FOR[package]}, and {package} is'
      ' not installed: only its stand-in is here, which can be imported and not'
      ' used; expected an installed package, or a run that does not decode'
    )

  return get


_finder, _loader = _Finder(), _Loader()
