"""The errors that pairbus raises for its users. Pure.

    PairbusError
    ├── BrokerError             a broker that cannot start or serve as asked
    ├── CertificateError        certificates that cannot be made or read          (broker/net/certificates.py)
    ├── InvalidFault            a fault that cannot be caused as asked for
    ├── InvalidDescription      an entity that cannot be as asked for             (broker/model/bounds.py)
    ├── ConfigError             a configuration that cannot be used               (broker/config/config_table.py)
    ├── BadDocument             a management request that is none                 (broker/http/xml.py)
    ├── SasError                a token that is not good                          (sas.py)
    ├── ControlError            the control socket of a data folder cannot be used
    ├── LedgerError             a ledger folder cannot be written
    ├── CommandError            a command that cannot be carried out              (commands/broker.py)
    ├── PairingError            what pairing raises, drawn there                  (pairing/errors.py)
    ├── TelemetryMissing        OpenTelemetry is asked for and not installed      (telemetry.py)
    ├── SyphonFailed            the syphon cannot go on                           (syphon/engine.py)
    ├── ListingFailed           a namespace's queues cannot be listed             (syphon/listing.py)
    ├── InvalidOption           an option or column that Spark's source refuses   (spark/connector/options.py)
    ├── DataLoss                messages that a stream wanted are gone            (spark/connector/batch_reader.py)
    ├── NotSent                 rows that no broker confirmed                     (spark/connector/writer.py)
    ├── TransferFailed          a move, archive or restore that cannot go on      (spark/pipelines/preflight.py)
    │   └── SessionsRequired    … since the entity requires sessions              (spark/pipelines/preflight.py)
    ├── BadLocation             a path or URL that reports cannot go to           (spark/runtime/locations.py)
    ├── BadLedger               something given as a ledger that is none          (spark/reports/ledgers.py)
    ├── NotAsIs                 a ledger file that cannot become Parquet    (spark/reports/ledger_files/line_blocks.py)
    ├── JavaNotFound            Spark has no Java to run on                       (spark/runtime/java.py)
    ├── PriceError              a price book that cannot be used                  (cost/prices.py)
    ├── InvalidScenario         a cost that cannot be estimated as asked for      (cost/estimate.py)
    ├── InvalidDrill            a drill that cannot be held as asked for          (drill/plan.py)
    ├── DrillFailed             a part of a drill's own failed                    (drill/processes.py)
    ├── ConnectionStringError   a connection string that cannot be used           (connection_string.py)
    └── WireError               what the wire client meets, drawn there           (wire/errors.py)

Every message names what was wrong, the value, and what would be right or what to do next.

`pairbus.amqp` and `pairbus.journal` import nothing else of pairbus and have their own roots, `AmqpError` and
`JournalError`: values of the wire and of the disk, which the rooms above turn into answers.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import Final

_NEXT_STEPS: Final = {
    errno.ENOENT: "check the path, or name another",
    errno.EACCES: "let this user have it, or name another",
    errno.EPERM: "let this user have it, or name another",
    errno.ENOTDIR: "a part of that path is a file; name another",
    errno.EISDIR: "move the folder away, or name a file",
    errno.EEXIST: "move it away, or name another",
    errno.EROFS: "its file system can't be written to; name another",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENAMETOOLONG: "name a shorter one",
}


def file_problem(error: OSError) -> str:
    """Return one line with the system's message, the file and what to do next."""
    subject = "the output" if error.filename is None and error.errno == errno.ENOSPC else error.filename
    said = error.strerror or str(error)
    step = _NEXT_STEPS.get(error.errno or 0, "run it with --debug to see where")
    return " ".join(f"{'' if subject is None else f'{subject}: '}{said}; {step}".split())


def first_line(error: object) -> str:
    """Return the first line of what Spark says, or the line of a worker's traceback, or of Java's, that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):  # py4j's own words
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        lines = [line.removeprefix(": ") for line in lines[1:]]
        if causes and causes[-1].partition(": ")[2] not in lines[0]:
            lines = causes[-1:]
    named = [line for line in lines if line.startswith("pairbus.")]
    return ([*named[-1:], *lines, "no reason given"])[0].split(" SQLSTATE")[0].rstrip(".;")[:400]


#: How the options that texts advise are spelled in Python, as all texts are written, on the command line, and as an
#: option of the data source.
_SPELLINGS: Final = (
    ("ca_file=", "--ca-file", "caFile"),
    ("same_namespace=True", "--same-namespace", "same_namespace=True"),
)


def for_command_line(text: str) -> str:
    """Return a text with the options that it advises spelled as on the command line."""
    for ours, option, _ in _SPELLINGS:
        text = text.replace(ours, option)
    return text


def for_data_source(text: str) -> str:
    """Return a text with the options that it advises spelled as those of Spark's data source."""
    for ours, _, option in _SPELLINGS:
        text = text.replace(ours, option)
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with a blank after it, or nothing where no known word is near; letter case does not matter."""
    by_key = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_key, n=1, cutoff=0.6)
    return f"did you mean {by_key[near[0]]!r}? " if near else ""


class PairbusError(Exception):
    """Root of what pairbus raises."""


class BrokerError(PairbusError):
    """A broker can't start or serve as asked."""


class InvalidFault(PairbusError, ValueError):
    """A fault can't be caused as asked for."""


class ControlError(PairbusError):
    """The control socket of a data folder can't be used."""


class LedgerError(PairbusError, OSError):
    """A ledger folder can't be written."""
