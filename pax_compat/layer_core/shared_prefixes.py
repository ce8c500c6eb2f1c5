"""Names of the decode states of a prefix that several samples share."""

# The decode states that can be shared: keys and values, and their scales.
SHARED_STATES = (
  'key_state',
  'value_state',
  'key_state_scale',
  'value_state_scale',
)


def prefix_name(state: str, number: int) -> str:
  """Returns the name of a state of the prefix `number`, as in Pax.

  It is a variable of the collection 'prefix_decoder_cache'.

  >>> prefix_name('key_state', 0)
  'key_state_0_pfx'
  """
  return f'{state}_{number}_pfx'
