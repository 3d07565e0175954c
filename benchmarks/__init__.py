"""NeMo and nest_ssl side by side, in one table: `python start.py bench`.

run.py goes through the measurements of plan.py. Each one is made by side.py in a process of its own, in the environment
of NeMo or in ours, on the audio of corpus.py; results.py keeps what came out, table.py writes it down.
"""
