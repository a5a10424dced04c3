"""A server of OpenEnv's own, for tests: `python openenv_server.py` prints its port."""
# openenv has a virtual environment of its own, so it is missing where types are checked.
# pyright: basic, reportMissingImports=false

import socket

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed: str


class Echo(Environment):
    """Echo that ends with its third step and pays a tenth for each letter."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, greeting="seed", **kwargs):
        self._state = State()
        return EchoObservation(echoed=f"{greeting} {seed}")

    def step(self, action, timeout_s=None, **kwargs):
        if action.message == "fail":
            raise RuntimeError("the echo has failed")
        self._state.step_count += 1
        paid = len(action.message) / 10
        return EchoObservation(echoed=action.message, reward=paid, done=self._state.step_count == 3)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Echo, EchoAction, EchoObservation, max_concurrent_envs=2)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # a client that comes before the server runs waits
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])
