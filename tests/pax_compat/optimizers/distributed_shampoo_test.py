"""The names of an optimizer that is not supported."""

import pytest

from pax_compat import errors, optimizers


@pytest.mark.parametrize(
  'cls', [optimizers.DistributedShampoo, optimizers.ShardedDistributedShampoo]
)
@pytest.mark.parametrize('fields', [{}, {'block_size': 128}])
def test_the_message_names_alternatives(cls, fields):
  for make in (cls.config, cls.HParams, cls.HParams.config):
    with pytest.raises(errors.UserError, match='Use Shampoo, which has'):
      make(**fields)


@pytest.mark.parametrize(
  'name', ['ImageClassification', 'LanguageModeling', 'LargeLanguageModeling']
)
def test_its_ready_made_configs(name):
  make = getattr(optimizers.ShardedDistributedShampoo, f'HParams{name}')
  with pytest.raises(errors.UserError, match='Use Shampoo, which has'):
    make()
