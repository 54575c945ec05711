"""A launch that notes which of its facts were read: what a rule was decided by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sglang_guards.launch.facts import Fact, Launch, question


class RecordingLaunch(Launch):
    """The same launch; `read` lists the facts that were asked for, in order, known or not."""

    read: dict[str, None]
    _of: Launch

    def __init__(self, of: Launch) -> None:
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "read", {})
        super().__init__(of.facts, of.argv, _RecordedEnv(of.env, self.read), of.typed, of.source)

    def fact(self, name: str) -> Fact:
        self.read[name] = None
        return self._of.fact(name)

    def answer(self, probe: str, **arguments: str) -> Fact:
        self.read[f"source.{question(probe, arguments)}"] = None
        return self._of.answer(probe, **arguments)

    def given(self, field_name: str) -> bool:
        self.read[f"args.{field_name}"] = None
        return self._of.given(field_name)

    def flag(self, field_name: str) -> str:
        return self._of.flag(field_name)  # how a flag is spelled decides nothing

    def unrecorded(self) -> Launch:
        return self._of

    def restart(self) -> None:
        """Forget what was read."""
        self.read.clear()


class _RecordedEnv(Mapping[str, str]):
    def __init__(self, env: Mapping[str, str], read: dict[str, None]) -> None:
        self._env, self._read = env, read

    def __getitem__(self, name: str) -> str:
        self._read[f"env.{name}"] = None
        return self._env[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)
