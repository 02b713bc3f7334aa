"""What users rely on, held by snapshots and by data that earlier versions wrote.

`snapshots/` has a file for each subject of `subjects.py`: names, signatures, help, keys, columns, metrics. The test
compares them with what the code says today. After a change on purpose: `python -m tests.frozen --write SUBJECT`.

`data/` has a folder for each version whose data must open ever after; `python -m tests.frozen.write_fixtures FOLDER`
makes one. A new folder is tested without any new code.
"""
