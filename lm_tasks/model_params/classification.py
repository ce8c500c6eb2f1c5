"""Models that classify tokens one by one."""

from lm_tasks.model_params import settings
from pax_compat import base_experiment, layers, tasks_lib
from pax_compat.config import Config


class ClassificationModelAdam(base_experiment.BaseExperiment):
  """Layers of products that label each token by itself, trained with Adam.

  Class attributes:
    NUM_LAYER: number of products.
    INPUT_DIM: dims of the embedded tokens; also the number of labels.
    HIDDEN_DIM: dims between the products.
    OUTPUT_DIM: dims of the last product; must be INPUT_DIM.
    MLP_WEIGHT_SHARDING, SOFTMAX_WEIGHT_SHARDING: mesh axes of each dimension of
      the weights.
    MESH_SHAPE: devices along the axes replica, data and mdl.
    TRAINING_OPTIMIZED_SHARDING: has no effect on these models.
  """

  NUM_LAYER = 8
  INPUT_DIM = 4096
  HIDDEN_DIM = 7168
  OUTPUT_DIM = 4096
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  CHECKPOINT_EVERY_N_STEPS = 5
  SUMMARY_INTERVAL_STEPS = 5
  NUM_TRAIN_STEPS = 10
  MLP_WEIGHT_SHARDING = None
  SOFTMAX_WEIGHT_SHARDING = None

  MESH_SHAPE = None
  TRAINING_OPTIMIZED_SHARDING = True

  def task(self) -> Config:
    """Returns the model and its training settings."""
    model = layers.ClassificationMLPModel.config(name='classification_model')
    model.mlp_tpl.set(
      num_layers=self.NUM_LAYER,
      hidden_dims=self.HIDDEN_DIM,
      ici_mesh_shape=self.MESH_SHAPE,
    )
    model.mlp_tpl.ff_tpl.set(
      input_dims=self.INPUT_DIM, output_dims=self.OUTPUT_DIM
    )
    model.mlp_tpl.weight_split_dims_mapping.wt = self.MLP_WEIGHT_SHARDING
    model.softmax_tpl.set(input_dims=self.INPUT_DIM, num_classes=self.INPUT_DIM)
    model.softmax_tpl.weight_split_dims_mapping.wt = (
      self.SOFTMAX_WEIGHT_SHARDING
    )
    task = tasks_lib.SingleTask.config(name='classification_task', model=model)
    task.train.set(
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      num_train_steps=self.NUM_TRAIN_STEPS,
    )
    settings.set_sharding_annotations_v1(
      task, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
    )
    settings.set_default_adam(task, self.LEARNING_RATE, self.WEIGHT_DECAY)
    return task
