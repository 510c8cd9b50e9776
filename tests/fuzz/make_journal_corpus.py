#!/usr/bin/python3
"""Write the seeds of fuzz_journal and fuzz_ingest into corpus/: a journal as a file, hostile SQL over a good one, small job files."""
import gzip
import pathlib
import sqlite3
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

SQL = {
    "types": "UPDATE jobs SET state = 'x'; UPDATE leases SET job = 1.5, worker = NULL;",
    "negative": "UPDATE meta SET value = -1; UPDATE jobs SET created_s = -5; INSERT INTO leases VALUES(-3, 7, 5, x'030002');",
    "blobs": "UPDATE leases SET items = zeroblob(500000); UPDATE jobs SET name = zeroblob(9000);",
    "long_items": "UPDATE leases SET items = x'ffffffffffffffffff7f0001'; INSERT INTO leases VALUES(1, 7, 5, x'0300020000010100ff07');",
    "missing": "DROP TABLE leases; DROP TABLE jobs;",
    "views": "DROP TABLE jobs; CREATE VIEW jobs AS SELECT 7 AS id, 1 AS seq, 1 AS state, 1 AS created_s, 'v' AS name, 0 AS generation;",
    "endless_view": "DROP TABLE leases; CREATE VIEW leases AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 7 AS job, 5 AS worker, x'030002' AS items FROM n;",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN UPDATE jobs SET id = id + 1; END;",
    "columns": "ALTER TABLE jobs DROP COLUMN name; ALTER TABLE leases RENAME COLUMN items TO things;",
    "many": "INSERT INTO jobs(id, seq, state, created_s, name) SELECT value, value, 1, 1, 'n' FROM generate_series(100, 200); INSERT INTO meta VALUES('version', 99);",
    "version": "UPDATE meta SET value = 99 WHERE key = 'version';",
    "encoding": "PRAGMA user_version = 5; PRAGMA application_id = 7; VACUUM;",
}
LINES = [b'{"custom_id": "a", "prompt": "x", "max_tokens": 3, "n": 2}', b'{"custom_id": "a", "prompt": [1, 2]}', b'', b'  ', b'{"messages": [{"role": "user", "content": "hi"}]}\r',
         b'not json', b'{"prompt": "\xff"}', b'{"custom_id": "row-1", "prompt": "y"}', b'{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "z"}}']


def write(kind, name, data):
    (HERE / "corpus" / kind / name).write_bytes(data)


def main():
    for name, sql in SQL.items():
        write("journal", f"sql_{name}", b"\1" + sql.encode())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "journal.db"
        db = sqlite3.connect(path)
        db.executescript("PRAGMA page_size=512; CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
                         "CREATE TABLE jobs(id INTEGER PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, state INTEGER NOT NULL, created_s INTEGER NOT NULL, name TEXT NOT NULL, "
                         "generation INTEGER NOT NULL DEFAULT 1);"
                         "CREATE TABLE leases(id INTEGER PRIMARY KEY, job INTEGER NOT NULL, worker INTEGER NOT NULL, items BLOB NOT NULL);"
                         "CREATE INDEX leases_by_job ON leases(job); INSERT INTO meta VALUES('version', 2), ('next_lease', 4);"
                         "INSERT INTO jobs VALUES(7, 1, 1, 1, 'job', 1); INSERT INTO leases VALUES(2, 7, 5, x'030002');")
        db.close()
        write("journal", "file", b"\0" + path.read_bytes())
    write("journal", "no_file", b"\0")
    write("journal", "text", b"\0SQLite format 3\0" + b"x" * 200)
    plain = b"\n".join(LINES)
    write("ingest", "plain", b"\x0e" + plain)
    write("ingest", "bytes", b"\x00" + plain + b"\n")
    write("ingest", "packed", b"\x0f" + plain)
    write("ingest", "members", b"\x0e" + gzip.compress(plain[:100], mtime=0) + gzip.compress(plain[100:], mtime=0) + b"\0" * 20)
    write("ingest", "cut", b"\x0e" + gzip.compress(plain, mtime=0)[:-9])
    write("ingest", "suffix", b"\x1e" + plain + b"\n" + plain)
    write("ingest", "bom", b"\x0e\xef\xbb\xbf" + plain)
    write("ingest", "utf16", b"\x0e\xff\xfe{\0}\0")
    write("ingest", "empty", b"\x0e")


if __name__ == "__main__":
    main()
