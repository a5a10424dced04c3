"""The names of `rolegraph.engine.run`, from which `rolegraph.engine.lazily` imports each."""

from rolegraph.engine.run.scheduler import run_episode as run_episode
from rolegraph.engine.run.streaming import EpisodeMaker as EpisodeMaker
from rolegraph.engine.run.streaming import jobs as jobs
from rolegraph.engine.run.streaming import missing as missing
from rolegraph.engine.run.streaming import run_jobs as run_jobs
from rolegraph.engine.run.turn import EpisodeJob as EpisodeJob
from rolegraph.engine.vocabulary.isolation import Isolation as Isolation
