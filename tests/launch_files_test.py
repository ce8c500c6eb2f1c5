"""The files in docs/launch, with local processes in place of a cluster."""

import contextlib
import os
import pathlib
import re
import stat
import subprocess
import sys

import pytest
import yaml

from pax_compat import experiment_sources
from pax_compat.experiment_sources import SourceOptions
from tests import setup_test
from tests.pax_compat import launching, trainer_runs

LAUNCH = pathlib.Path(__file__).resolve().parents[1] / 'docs' / 'launch'
STEPS = '--set=task.train.num_train_steps=3'
# Starts two processes with the variables that Slurm sets, and ends like them.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
pids=()
for i in 0 1; do
  SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_PROCID=$i \\
    SLURM_LOCALID=$i "$@" & pids+=($!)
done
worst=0
for pid in "${pids[@]}"; do
  wait "$pid" || { s=$?; worst=$((s > worst ? s : worst)); }
done
exit "$worst"
"""


def _sbatch(bin_folder, programs, *flags, **env):
  """Runs slurm.sbatch with stand-ins for Slurm's commands."""
  bin_folder.mkdir()
  for name, text in programs.items():
    (bin_folder / name).write_text(text)
    (bin_folder / name).chmod(stat.S_IRWXU)
  path = [str(bin_folder), os.path.dirname(sys.executable), os.environ['PATH']]
  return subprocess.run(
    ['bash', LAUNCH / 'slurm.sbatch', *flags],
    env=launching.environment(
      PATH=os.pathsep.join(path),
      **{'SLURM_JOB_ID': '7', 'EXP': trainer_runs.COUNTING} | env,
    ),
    capture_output=True,
    text=True,
    timeout=launching.PATIENCE_SECONDS,
  )


@pytest.mark.slow
def test_slurm_trains_on_two_processes(tmp_path):
  with launching.free_port() as port:
    done = _sbatch(
      tmp_path / 'bin',
      {'srun': SRUN},
      STEPS,
      RUN=str(tmp_path / 'run'),
      JAX_COORDINATOR_PORT=str(port),
    )
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('2 x cpu of 2 processes; mesh data 2') == 1
  assert trainer_runs.steps_saved(tmp_path / 'run') == [3]


@pytest.mark.parametrize('status, requeued', [(143, 'requeue 7'), (2, '')])
def test_slurm_queues_again_what_was_preempted(tmp_path, status, requeued):
  log = tmp_path / 'log'
  log.touch()
  programs = {
    'srun': f'#!/bin/sh\necho "$*"\nexit {status}\n',
    'scontrol': f'#!/bin/sh\necho "$*" > {log}\n',
  }
  done = _sbatch(tmp_path / 'bin', programs, STEPS, RUN='runs/x y')
  assert done.returncode == status
  assert log.read_text().strip() == requeued
  assert done.stdout.split('pax_compat.main ')[1].strip() == (
    f'--exp={trainer_runs.COUNTING} --job_log_dir=runs/x y {STEPS}'
  )


def test_slurm_needs_an_experiment(tmp_path):
  done = _sbatch(tmp_path / 'bin', {}, EXP='', RUN='x')
  assert done.returncode and 'the name of an experiment' in done.stderr


def _jobset(name):
  """Returns a JobSet, the spec of its only job, and its only container."""
  jobset = yaml.safe_load((LAUNCH / f'jobset_{name}.yaml').read_text())
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert jobset['kind'] == 'JobSet'
  [job] = jobset['spec']['replicatedJobs']
  spec = job['template']['spec']
  assert spec['parallelism'] == spec['completions']
  pod = spec['template']['spec']
  # The one that restarts is the JobSet: all of its pods.
  assert (pod['restartPolicy'], spec['backoffLimit']) == ('Never', 0)
  assert jobset['spec']['failurePolicy']['maxRestarts'] > 0
  [container] = pod['containers']
  return jobset, job, container


def _variables(container):
  return {entry['name']: entry['value'] for entry in container['env']}


def _argument(argument, folder, env):
  """Returns an argument of a pod's command, as a local process gets it.

  The experiment and its folder are replaced; it reads no TFDS data.
  """
  name, value = argument.split('=', 1)
  if name == '--tfds_data_dir':
    return STEPS
  replaced = {'--exp': trainer_runs.COUNTING, '--job_log_dir': folder}
  # As Kubernetes does.
  value = re.sub(r'\$\((\w+)\)', lambda m: env[m[1]], value)
  return f'{name}={replaced.get(name, value)}'


def _commands(folder, container, variables):
  """Returns (what follows `python`, environment) for each dict of variables."""
  _, *command = container['command']
  for own in variables:
    env = launching.environment(**own)
    arguments = [_argument(a, folder, env) for a in container['args']]
    yield [*command, *arguments], own


def _assert_trained(folder, outputs):
  found = ['2 x cpu of 2 processes; mesh data 2' in text for text in outputs]
  assert sum(found) == 1  # The first process prints the progress.
  assert trainer_runs.steps_saved(folder) == [3]


@pytest.mark.slow
def test_gpu_jobset_trains_on_two_nodes(tmp_path):
  jobset, job, container = _jobset('gpu')
  ours = _variables(container)
  assert int(ours['NUM_NODES']) == job['template']['spec']['parallelism'] == 2
  name = jobset['metadata']['name']
  host, port = ours['COORDINATOR'].split(':')
  assert host == f'{name}-{job["name"]}-0-0.{name}'
  assert int(port) == container['ports'][0]['containerPort']
  with launching.free_port() as port:
    ours['COORDINATOR'] = f'localhost:{port}'
    of_pods = [
      ours
      | {'JOB_COMPLETION_INDEX': str(i), 'KUBERNETES_SERVICE_HOST': '10.0.0.1'}
      for i in range(2)
    ]
    folder = tmp_path / 'run'
    with contextlib.ExitStack() as stack:
      pods = [
        stack.enter_context(
          trainer_runs.start(command, output=tmp_path / str(i), **env)
        )
        for i, (command, env) in enumerate(
          _commands(folder, container, of_pods)
        )
      ]
      for pod in pods:
        assert pod.end() == 0, pod.stderr
      _assert_trained(folder, [pod.stdout for pod in pods])


@pytest.mark.slow
def test_tpu_jobset_trains_on_two_slices(tmp_path):
  """One host a slice; JAX takes these processes for those of GKE's TPUs."""
  pytest.importorskip('libtpu')
  _, job, container = _jobset('tpu')
  assert job['replicas'] == 2
  with launching.free_port() as port:
    of_pods = [
      _variables(container)
      | {
        'JAX_FORCE_TPU_INIT': '1',
        'JAX_COORDINATOR_PORT': str(port),
        'TPU_WORKER_ID': '0',
        'TPU_WORKER_HOSTNAMES': 'localhost',
        'MEGASCALE_NUM_SLICES': '2',
        'MEGASCALE_SLICE_ID': str(i),
        'MEGASCALE_COORDINATOR_ADDRESS': 'localhost',
      }
      for i in range(2)
    ]
    folder = tmp_path / 'run'
    # What JAX detects, it reads while it is imported: new interpreters.
    pods = [
      subprocess.Popen(
        [sys.executable, *command],
        env=launching.environment(**env),
        stdout=subprocess.PIPE,
        text=True,
      )
      for command, env in _commands(folder, container, of_pods)
    ]
    outputs = [
      pod.communicate(timeout=launching.PATIENCE_SECONDS)[0] for pod in pods
    ]
    _assert_trained(folder, outputs)


@pytest.mark.slow
def test_libtpu_knows_the_flags_of_the_jobset():
  """It ends the process at a flag that it does not know."""
  pytest.importorskip('libtpu')
  script = """
  from pax_compat.tools.pods import topology
  print(len(topology.create('v4:2x2x1').devices))
  """
  [_, _, container] = _jobset('tpu')
  done = launching.run_script(script, **_variables(container))
  assert done.stdout.strip() == '4', done.stderr


@pytest.mark.parametrize('name', ['tpu', 'gpu'])
def test_the_experiments_and_hosts_are_there(name):
  _, job, container = _jobset(name)
  flags = dict(argument.split('=', 1) for argument in container['args'])
  assert flags['--exp'] in experiment_sources.names(SourceOptions())
  if name == 'tpu':
    selector = job['template']['spec']['template']['spec']['nodeSelector']
    sides = selector['cloud.google.com/gke-tpu-topology'].split('x')
    chips = container['resources']['limits']['google.com/tpu']
    assert job['template']['spec']['parallelism'] * chips == int(
      sides[0]
    ) * int(sides[1]) * int(sides[2])


def test_the_image_has_what_setup_declares():
  text = (LAUNCH / 'Dockerfile').read_text()
  extras = set(','.join(re.findall(r'EXTRAS=([\w,]+)', text)).split(','))
  assert {'tpu', 'cuda'} <= extras <= {x.lower() for x in setup_test.declared()}
  for line in re.findall(r'^COPY (.*) \S+$', text, re.MULTILINE):
    for path in line.split():
      assert (LAUNCH.parents[1] / path).exists(), path
