"""Measure NeMo and nest_ssl on the same machine, and write one table: `python start.py bench`.

run.py makes the measurements of plan.py. side.py makes each one in a separate process, in NeMo's environment or ours,
on the audio of corpus.py; results.py stores the results, table.py writes the table.
"""
