"""Test that the commands of `docs/how-to/pin-the-code.md` do in sequence what the page says."""

import re
import shlex
import subprocess
from pathlib import Path

from tests.cli.test_federation import SessionTable

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "pin-the-code.md").read_text()
STEPS = re.compile(r"^    ```(sh|toml)\n(.*?)^    ```", re.DOTALL | re.MULTILINE)


def test_page_steps_pin_task(tmp_path: Path):
    table, keys, said = SessionTable(tmp_path), {}, ""
    for kind, text in STEPS.findall(PAGE)[:-1]:  # the last one starts a run
        if kind == "toml":
            manifest = tmp_path / "ward" / "pyproject.toml"
            table_of_settings = "[tool.flwr.app.config]\n"
            settings = re.sub("^    ", "", text, flags=re.MULTILINE)
            manifest.write_text(manifest.read_text().replace(table_of_settings, table_of_settings + settings))
            continue
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            name, command = (
                re.fullmatch(r"\s*(?:(\w+)=\$\()?(.*?)\)?", line).groups() if "$(" in line else ("", line)
            )
            words = shlex.split(re.sub(r"\$([A-Z]+)", lambda found: keys[found[1]], command))
            if words[0] != "fedgc":
                subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
                continue
            done = table.fedgc(*words[1:], opened_by=None)
            assert done.returncode == 0, done.stderr
            said = done.stdout
            if name:
                keys[name] = said.strip()
    assert sorted(keys) == ["NORTH", "SOUTH", "WEST"]
    shown = re.findall(r"^    ```text\n(.*?)^    ```", PAGE, re.DOTALL | re.MULTILINE)[0]
    assert [line.strip() for line in shown.splitlines()][1:] == said.splitlines()[1:]
