"""Versions of this package, of Python and of the libraries that compute."""

import importlib.metadata
import platform

import pax_compat

NAME = 'pax-compat'
_LIBRARIES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'fiddle')


def of_package() -> str:
  """Returns the version of this package."""
  return pax_compat.__version__


def of_libraries() -> dict[str, str]:
  """Returns versions by name. Nothing is imported for them."""
  return {
    'python': platform.python_version(),
    **{name: _of(name) for name in _LIBRARIES},
  }


def _of(name: str) -> str:
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'
