"""What is expected of each experiment of `experiments`; see `users_test`.

`native` is computed by JAX alone, `bridged` by Lingvo's code inside the step,
`mixed` by both. `refused` has words of the message: what is wrong, and advice.
An experiment that comes to be translated gets another line here.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Expected:
  """The expectation of an experiment.

  Attributes:
    kind: `native`, `mixed`, `bridged` or `refused`.
    words: of the error, if it is refused; of the log, else.
    quick: whether it is tried in the default tier.
    crashes: why it does not come to its end yet; empty if it does.
  """

  kind: str
  words: tuple[str, ...] = ()
  quick: bool = False
  crashes: str = ''


def _of(kind, *words, **fields):
  return Expected(kind, words, **fields)


EXPECTED = {
  # Optimizers.
  'adam_of_ones_own_numbers': _of('bridged'),
  'adagrad': _of('bridged'),
  'rmsprop': _of('bridged'),
  'momentum': _of('bridged'),
  'adafactor': _of('bridged'),
  'several_optimizers': _of('bridged'),
  'accumulated_gradients': _of('bridged'),
  'adam_of_a_table': _of('bridged'),
  'momentum_of_a_table': _of('bridged'),
  'own_optimizer': _of('bridged'),
  'own_update_rule': _of('bridged'),
  # Schedules.
  'ramp_and_cosine': _of('bridged'),
  'pieces': _of('bridged'),
  'the_lower_of_two': _of('bridged'),
  'a_cycle': _of('bridged'),
  'own_schedule': _of('bridged', quick=True),
  'schedule_by_the_dev_set': _of('bridged'),
  # Learners.
  'two_learners': _of('bridged'),
  'frozen_layer': _of('bridged'),
  'clipped_norm': _of('bridged'),
  'l2': _of('bridged'),
  'l1_and_l2': _of('bridged'),
  'averages': _of('bridged'),
  'averages_with_batch_norm': _of('bridged'),
  'losses_of_two_learners': _of('bridged'),
  # Cells and layers.
  'own_cell': _of('bridged'),
  'gru': _of('bridged'),
  'sru': _of('bridged'),
  'convolution': _of('bridged'),
  'own_layer': _of('bridged', quick=True),
  'counting_layer': _of('bridged'),
  'noisy_layer': _of('bridged'),
  'looping_layer': _of('bridged'),
  'unknown_activation': _of('refused', 'activations.IsSupported'),
  # Tasks and metrics.
  'strings': _of('refused', 'strings', quick=True),
  'own_tower': _of('bridged'),
  'own_backward_pass': _of('bridged'),
  'updates_after_the_step': _of('bridged'),
  'own_metrics': _of('bridged'),
  'results_on_the_host': _of('bridged'),
  'own_model_class': _of('refused', 'OwnModel', 'expected an unchanged'),
  # Native models.
  'small_transformer': _of('native'),
  'transformer_of_own_layers': _of('bridged'),
  'recurrent_model': _of('native'),
  # Inputs.
  'made_up_input': _of('bridged'),
  'lines_without_buckets': _of('bridged', 'pad_to_lengths'),
  'mixture_of_files': _of('bridged'),
  'endless_evaluation': _of('bridged', 'it never ends', quick=True),
  # Several tasks.
  'two_tasks': _of('native'),
  'tasks_of_ones_own': _of('mixed'),
}
