"""`fedgc policy` and `fedgc audit`: the rules of a site, and the log of what was done under them."""

from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.options import AsJson, Run, Script, Task, runs_like

policy = typer.Typer(help="The rules of a site: check, explain, try on a run.", no_args_is_help=True)
audit = typer.Typer(help="The audit log of a site: verify, export.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The file of the rules, site.toml.")]
Log = Annotated[Path, typer.Argument(help="The audit log; its head lies beside it.")]
Noted = Annotated[
    str, typer.Option("--head", help="A digest that was noted before, whose line must still be there.")
]


@policy.command("check")
def check(file: File) -> None:
    """Check the rules of a site, and that its audit log can be written; exit code 2 if they are wrong.

    Example: fedgc policy check site.toml
    """
    from fedgc.cli import policy as policies  # here, since help must not wait for numpy

    policies.check_file(file)


@policy.command("explain")
def explain(file: File, as_json: AsJson = False) -> None:
    """Say what the rules of a site allow, and what they do not protect from.

    Example: fedgc policy explain site.toml
    """
    from fedgc.cli import policy as policies

    policies.explain(file, as_json=as_json)


@policy.command("simulate")
def simulate(
    run: Run = None,
    file: Annotated[Path, typer.Option("--policy", help="The file of the rules.")] = Path("site.toml"),
    client: Annotated[str | None, typer.Option(help="Only this client; by default each of the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the rules of a site would have refused in a run of the store.

    Example: fedgc policy simulate run-20260101-120000-1 --policy site.toml
    """
    from fedgc.cli import policy as policies

    policies.simulate(run, file, client, as_json=as_json)


@policy.command("digest")
def digest(
    folder: Annotated[Path, typer.Argument(help="The folder of the app.")] = Path(),
    task: Task = None,
    script: Script = None,
) -> None:
    """Print the digests by which rules allow an app, a task or a script, as `fedgc run` sends them.

    Example: fedgc policy digest ward --task ward.task:task
    """
    from fedgc.cli import policy as policies

    policies.digests(folder, task, script)


@audit.command("verify")
def verify(file: Log, head: Noted = "") -> None:
    """Check that no line of an audit log was changed, removed or inserted; exit code 1 if one was.

    Example: fedgc audit verify site.audit.jsonl
    """
    from fedgc.cli import policy as policies

    policies.verify_log(file, head)


@audit.command("export")
def export(
    file: Log,
    run: Annotated[
        str | None,
        typer.Option(help="Only the entries of this run; by default of all.", autocompletion=runs_like),
    ] = None,
    head: Noted = "",
) -> None:
    """Verify an audit log, and print its entries as JSON lines, of all runs or of one.

    Example: fedgc audit export site.audit.jsonl > audit.jsonl
    """
    from fedgc.cli import policy as policies

    policies.export_log(file, run, head)
