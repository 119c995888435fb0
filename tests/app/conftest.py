import pytest

from regraft.app.cli import run


@pytest.fixture
def regraft(capfd, tmp_path, monkeypatch):
    """Run one command, with a store of the test's own; gives (exit code, stdout, stderr)."""
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "store"))

    def call(*arguments) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call
