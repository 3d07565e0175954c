"""The command `nest-ssl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError
from nest_ssl.printable import say


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs: exp_dir/name; of several runs in a folder, the newest"),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the page; by default report.html in the first RUN")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print key figures and verdicts as JSON; no page")] = False,
    open_it: Annotated[bool, typer.Option("--open", help="show the page in the browser")] = False,
) -> None:
    """Make one HTML page about a run, also while it is active: curves, health, speed, samples; or compare runs.

    The page is a single file that loads nothing else, so it can be shared.

    Exit code: 0 done, 2 failed.

    Example: nest-ssl report nest_experiments/NEST-tiny
    """

    def run() -> int:
        import json
        import webbrowser

        from nest_ssl.apps.pages.page import write_page
        from nest_ssl.apps.report.page import render
        from nest_ssl.apps.report.run import newest_run, open_runs
        from nest_ssl.apps.report.summary import gather

        folders = [newest_run(run) for run in runs]
        for given, folder in zip(runs, folders, strict=True):
            if folder != given:
                say(f"{given}: the newest run below it is {folder}", error=True)
        opened = open_runs(folders)
        if as_json:
            found = [report.as_dict() for report in gather(opened)]
            print(json.dumps(found, indent=2))
            return 0
        page = render(gather(opened))
        path = output or folders[0] / "report.html"
        try:
            write_page(page, path)
        except OSError as error:
            raise NestError(f"{path}: cannot be written: {error}; choose another place with --output") from error
        say(f"report: {path}")
        if open_it and not webbrowser.open(path.resolve().as_uri()):
            say("no browser was found to open it with", error=True)
        return 0

    exit_with(run)
