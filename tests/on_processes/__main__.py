"""Runs a function in one of several processes that compute together.

Example, for the second of three processes:

  python -m tests.on_processes MODULE:FUNCTION 1 3 PORT ARGUMENT...
"""

import importlib
import os
import sys


def main(program: str, index: str, count: str, port: str, *args: str):
  """Joins the other processes, then imports and calls the function.

  Args:
    program: module and function, separated by a colon.
    index: number of this process.
    count: how many processes.
    port: of JAX's coordinator on this machine.
    *args: arguments of the function.
  """
  # The library between the processes prints, too, from several threads at once
  # and in the middle of lines. It does so among the errors.
  sys.stdout = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  import jax

  jax.distributed.initialize(f'localhost:{port}', int(count), int(index))
  # Only now, in case the module computes while it is imported.
  module, _, function = program.partition(':')
  getattr(importlib.import_module(module), function)(*args)


if __name__ == '__main__':
  main(*sys.argv[1:])
