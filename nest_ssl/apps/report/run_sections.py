"""What the page tells of one run besides its curves: skipped data, starts, configuration, environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from nest_ssl.apps.pages.page import folded, table
from nest_ssl.apps.pages.text import Count, Html, code, escaped
from nest_ssl.apps.report.adjusted import ADJUSTED, reason_words
from nest_ssl.apps.report.events import Start
from nest_ssl.apps.report.figures import total_of
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.preset import ABSENT, Change, changes
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.texts import moment, span, words
from nest_ssl.config.machine import Adjustment
from nest_ssl.training.run_folder import FILES

_MOST_CHANGES = 3  # keys that one row of the starts names
_MOST_NAMES = 5  # of kept batches
_MOST_KEYS_SHOWN = 25  # that differ between runs, before they are folded


def skipped_section(run: Run) -> str:
    """Everything that training left out, and why."""
    totals = [total_of(run, name) for name in ("skipped_audio", "batches_without_masks", "nonfinite_steps")]
    audio, unmasked, nonfinite = (int(total or 0) for total in totals)
    if not (audio or unmasked or nonfinite or run.problems or run.nonfinite_batches):
        if None in totals:
            return _section("skipped", f"<p>{words('skipped_unknown')}</p>")
        return _section("skipped", f"<p>{words('nothing_skipped')}</p>")
    counts = {"audio": Count(audio), "unmasked": Count(unmasked), "nonfinite": Count(nonfinite)}
    content = f"<p>{words('skipped_sum', **counts)}</p>{_problems(run.problems)}"
    if run.nonfinite_batches:
        names = Html(", ".join(code(name) for name in run.nonfinite_batches[:_MOST_NAMES]))
        content += f"<p>{words('kept_batches', folder=code('nonfinite_batches'), names=names)}</p>"
    return _section("skipped", content)


def starts_section(run: Run) -> str:
    """When the run was started, how far each start came, and what was repeated or changed."""
    starts = run.history.starts
    if not starts:
        return _section("restarts", f"<p>{words('restart_none')}</p>")
    if len(starts) == 1:
        return _section("restarts", f"<p>{words('restart_one', time=moment(starts[0].time))}</p>")
    columns = ("start_number", "start_time", "start_steps", "start_repeated", "start_silence", "start_changes")
    return _section("restarts", table("starts", [words(name) for name in columns], "".join(_start_rows(run))))


def configuration_section(report: RunReport) -> str:
    """What differs from the shipped configuration it is nearest to, and all of it."""
    run = report.run
    if not run.config:
        return _section("configuration", f"<p>{words('no_config')}</p>")
    whole = folded(words("whole_config"), f"<pre><code>{escaped(_yaml(run.config))}</code></pre>")
    if report.preset is None:
        return _section("configuration", f"<p>{words('preset_missing')}</p>{whole}")
    preset, changed = report.preset
    adjusted = report.adjusted
    if not changed and not adjusted:
        return _section("configuration", f"<p>{words('preset_same', name=code(preset.name))}</p>{whole}")
    said = (
        words("preset_adjusted", name=code(preset.name), count=Count(len(changed)), adjusted=Count(len(adjusted)))
        if adjusted
        else words("preset_is", name=code(preset.name), count=Count(len(changed)))
    )
    rows = "".join(
        f'<tr><th scope="row">{code(change.key)}</th><td>{_setting(change.before)}</td>'
        f"<td>{_setting(change.after, adjusted.get(change.key))}</td></tr>"
        for change in changes(preset.config, run.config, also=adjusted)
    )
    columns = [words(name) for name in ("key", "value_preset", "value_run")]
    return _section("configuration", f"<p>{said}</p>{table('sides', columns, rows)}{whole}")


def differences_section(reports: Sequence[RunReport]) -> str:
    """Keys in which the configurations of several runs differ, be it because their machines do."""
    runs = [report.run for report in reports]
    found = {change.key for run in runs[1:] for change in changes(runs[0].config, run.config)}
    if not found:
        return _section("configuration", f"<p>{words('config_all_same')}</p>")
    leaves = [{change.key: change.after for change in changes({}, run.config)} for run in runs]
    keys = [key for key in dict.fromkeys(key for of in leaves for key in of) if key in found]
    rows = "".join(
        f'<tr><th scope="row">{code(key)}</th>'
        + "".join(
            f"<td>{_setting(of.get(key, ABSENT), report.adjusted.get(key))}</td>"
            for of, report in zip(leaves, reports, strict=True)
        )
        + "</tr>"
        for key in keys
    )
    columns = [words("key"), *(escaped(run.name) for run in runs)]
    listed = table("sides", columns, rows)
    if len(keys) > _MOST_KEYS_SHOWN:
        listed = folded(words("config_many", count=Count(len(keys))), listed)
    return f"<section><h2>{words('config_between')}</h2>{listed}</section>"


def environment_section(run: Run) -> str:
    """Versions, platform, command."""
    if not run.environment:
        return _section("environment", f"<p>{words('no_environment')}</p>")
    rows = f'<tr><th scope="row">{words("folder")}</th><td>{code(run.folder.resolve())}</td></tr>'
    for name, value in run.environment.items():
        if name in (ADJUSTED, FILES):  # the one is told with the configuration, the other is for the run itself
            continue
        shown = code(" ".join(map(str, value))) if isinstance(value, list) else escaped(value)
        rows += f'<tr><th scope="row">{code(name)}</th><td>{shown}</td></tr>'
    return _section("environment", table("sides", [words("setting"), words("value")], rows))


def _section(key: str, content: str) -> str:
    return f"<section><h2>{words(key)}</h2>{content}</section>"


def _problems(records: Sequence[Mapping[str, Any]]) -> str:
    """One row a kind of problem, with an example."""
    if not records:
        return ""
    files = Counter(str(record["kind"]) for record in records)
    rows = ""
    for kind, number in files.most_common():
        of_kind = [record for record in records if record["kind"] == kind]
        times = sum(record["count"] for record in of_kind if isinstance(record["count"], int))
        example = of_kind[0].get("message") or of_kind[0]["file"]
        rows += (
            f'<tr><th scope="row">{code(kind)}</th><td>{number:,}</td><td>{times:,}</td>'
            f'<td class="text">{escaped(example)}</td></tr>'
        )
    columns = [words(f"problem_{name}") for name in ("kind", "files", "times", "example")]
    return f"<p>{words('problems_listed')}</p>{table('problems', columns, rows)}"


def _start_rows(run: Run) -> Iterator[str]:
    """Changes are known where every start but the last left its configuration behind."""
    starts = run.history.starts
    configs = [*run.earlier_configs, run.config]
    known = len(configs) == len(starts)
    ended: float | None = None
    reached = -1
    for number, start in enumerate(starts, start=1):
        repeated = 0 if start.first_step is None else max(0, reached - start.first_step + 1)
        pause = "" if ended is None else span(max(start.time - ended, 0.0))
        changed = _changed(changes(configs[number - 2], configs[number - 1])) if known and number > 1 else ""
        yield (
            f'<tr><th scope="row">{number}</th><td class="text">{moment(start.time)}</td><td>{_steps(start)}</td>'
            f'<td>{f"{repeated:,}" if repeated else ""}</td><td>{pause}</td><td class="text">{changed}</td></tr>'
        )
        reached = max(reached, -1 if start.last_step is None else start.last_step)
        ended = start.ended


def _steps(start: Start) -> object:
    if start.first_step is None or start.last_step is None:
        return words("start_nothing")
    return Html(f"{start.first_step:,} – {start.last_step:,}")


def _changed(found: Sequence[Change]) -> Html:
    shown = [Html(f"{code(change.key)}: {_setting(change.before)} → {_setting(change.after)}") for change in found]
    more = f" +{len(found) - _MOST_CHANGES}" if len(found) > _MOST_CHANGES else ""
    return Html("<br>".join(shown[:_MOST_CHANGES]) + more)


def _setting(value: Any, adjusted: Adjustment | None = None) -> Html:
    """As it is, and what it would be on another machine."""
    if adjusted is not None:
        why = words("adjusted_from", asked=_setting(adjusted.old), reason=reason_words(adjusted.reason))
        return Html(f'{_setting(value)} <small class="adjusted">{why}</small>')
    if value is ABSENT:
        return Html(f'<span class="muted">{words("absent")}</span>')
    return escaped("null" if value is None else str(value).lower() if isinstance(value, bool) else value)


def _yaml(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
