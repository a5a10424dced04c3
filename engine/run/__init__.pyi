"""What `engine.run` gives; `engine.lazily` reads here where each name comes from."""

from engine.run.isolation import Isolation as Isolation
from engine.run.scheduler import Job as Job
from engine.run.scheduler import jobs as jobs
from engine.run.scheduler import missing as missing
from engine.run.scheduler import run_episode as run_episode
from engine.run.stream import stream as stream
