"""Defines what the audit counts as confirmed, missing, lost, doubled or unknown, and the wording. Pure.

They are SQL expressions over the counts of one message, in plain SQL that any engine understands, so that a test can
evaluate them without Spark. A message is (home, place, id); n confirmed sends of one id are n messages.

    c_…  what clients wrote    c_lines attempts, c_send and c_divert confirmed
    b_…  the primary's broker b_tries, b_send, b_dup (answered `duplicate`) of applications, b_car, b_car_dup of syphons
    m_ok what syphons wrote    confirmed by the primary
    x_…  the backlog           x_send confirmed there, x_taken, x_left, x_dead, x_expired: copies there
    found, received, …         copies at home: distinct sequence numbers, in the subscription that has most of them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FINDINGS: Final = (
    "lost", "unknown", "doubled", "late", "out_of_order", "redelivered", "dead_lettered", "expired", "still_there",
)  # fmt: skip
#: Counted for each entity and in all, in the order of the report.
COUNTS: Final = (
    "sent", "confirmed", "diverted", "carried_home", "received", "still_there", "expired", "dead_lettered",
    "lost", "doubled", "late", "out_of_order", "unknown", "no_id", "redelivered",
)  # fmt: skip

#: In this order: each may use those before it.
NUMBERS: Final[Mapping[str, str]] = {
    # Who carried it home must have found it in the backlog, whether or not the secondary's ledger is here.
    "x_seen": "greatest(x_send, case when b_car + b_car_dup + m_ok > 0 then 1 else 0 end)",
    # A client's ledger knows what was confirmed to the caller; a broker only what it confirmed, heard or not.
    "confirmed": "case when c_lines > 0 then c_send + c_divert else b_send + b_dup + x_seen end",
    "sent": "case when c_lines + b_tries + x_seen = 0 then 0 else greatest(1, confirmed) end",
    "diverted": "case when c_lines > 0 then c_divert else x_seen end",
    "carried_home": "least(greatest(m_ok, b_car + b_car_dup), greatest(diverted, 1))",
    # Copies that the destination took for duplicates are not missing, as long as one was taken.
    "dropped": "greatest(0, least(b_dup + b_car_dup, "
    "case when b_send + b_car > 0 then confirmed - 1 else confirmed end))",
    "missing": "greatest(0, confirmed - dropped - found - x_left - x_dead - x_expired)",
    # One id at the primary and in the backlog is one message whose first answer was lost, unless a client says more.
    "wanted": "greatest(1, case when c_lines > 0 then c_send + c_divert else greatest(b_send, x_seen) end)",
}

_BLIND: Final = "exists({who}_blind, s -> {at} > s.after and {at} <= s.until)"
#: Why a missing message is lost, or why nobody can tell. `p` is the primary's broker, `s` the one that holds the
#: backlog; {who}_cut: a blind spell covers the time. `r_known`: a receiver of that entity has a ledger.
_AT_HOME: Final = (
    "case when p_known then"
    " case when home_at < p_since then 'broker-later' when p_cut then 'broker-cut'"
    " when home_at > p_until then 'broker-ended' else '{lost}' end"
    # Nobody can tell then whether it is still there, expired or a dead letter.
    " when not r_known then 'nobody-watched' when found > 0 then 'repeated' else 'not-received' end"
)
REASON: Final = (
    "case when missing = 0 then null when not named then 'no-id'"
    " when diverted > 0 and carried_home = 0 then"
    " case when not s_known then 'no-backlog-ledger' when sent_at < s_since then 'backlog-later'"
    " when s_cut then 'backlog-cut' when sent_at > s_until then 'backlog-ended'"
    " when x_send = 0 then 'not-in-backlog' when x_taken = 0 then 'gone-from-backlog'"
    " else " + _AT_HOME.format(lost="taken-not-home") + " end"
    " else " + _AT_HOME.format(lost="gone") + " end"
)
BLIND: Final[Mapping[str, str]] = {
    f"{who}_cut": f"coalesce({_BLIND.format(who=who, at=at)}, false)"
    for who, at in (("p", "home_at"), ("s", "sent_at"))
}

#: By how many seconds a broker's clock is ahead of a sender's, and a receiver's at most ahead of that, or of the
#: broker's where the sender has no ledger: null where nobody can tell, 0 where nothing shows.
SKEWS: Final[Mapping[str, str]] = {
    "broker_ahead": "case when c_lines = 1 and c_send = 1 and b_tries = 1 and b_send = 1"
    " then greatest(b_sent_at - c_confirmed_at, 0) - greatest(c_begun_at - b_sent_at, 0) end",
    "receiver_ahead": "case when found > 1 then null when c_lines = 1 then least(by_receivers_at - c_begun_at, 0)"
    " when c_lines = 0 and b_tries = 1 and b_send = 1 then least(by_receivers_at - b_sent_at, 0) end",
}

LOST: Final[Mapping[str, str]] = {
    "gone": "confirmed, and the primary has neither delivered it nor has it still",
    "taken-not-home": "taken from the backlog, and it never came home",
    "not-in-backlog": "confirmed, and the secondary's ledger knows nothing of it",
    "gone-from-backlog": "confirmed by the backlog, and no longer there, though nobody took it",
}
UNKNOWN: Final[Mapping[str, str]] = {
    "nobody-watched": "no receiver's ledger and no broker's ledger of the primary",
    "broker-later": "the primary's ledger begins only after it was sent",
    "not-received": "no receiver's ledger has it; it may still be there, have expired or be a dead letter, which only "
    "the ledger of the primary's broker tells",
    "broker-cut": "the primary's ledger was cut, has a gap, lacks a file, or is still being written and nobody asked "
    "what is left",
    "broker-ended": "the primary's ledger ends before it was sent",
    "repeated": "its id was sent more often than received: duplicate detection or loss; a broker's ledger would tell",
    "no-backlog-ledger": "diverted, not seen at home, and no secondary's ledger says whether it is still there",
    "backlog-later": "diverted, and the secondary's ledger begins only after it was sent",
    "backlog-cut": "diverted, and the secondary's ledger was cut, has a gap, lacks a file, or nobody asked it what is "
    "left",
    "backlog-ended": "diverted, and the secondary's ledger ends before it was sent",
    "no-id": "sent without a message id",
}
#: What would make it known; shown once for each reason that occurs.
REMEDY: Final[Mapping[str, str]] = {
    "nobody-watched": "add the ledger of a receiver (ledger=FOLDER) or of the primary's broker (--ledger)",
    "not-received": "receive, or peek the entity and its dead-letter queue with pairbus peek",
    "broker-cut": "stop the broker cleanly, or ask it what is left, and audit again with all of its files",
    "no-backlog-ledger": "add the secondary's ledger, or look with pairbus backlog",
    "backlog-cut": "stop the secondary cleanly, or ask it what is left, or look with pairbus backlog",
    "no-id": "leave assign_message_id on",
}


def is_in(reasons: Mapping[str, str]) -> str:
    """Return SQL that asks whether the column `reason` is one of these."""
    return "reason in (" + ", ".join(f"'{each}'" for each in reasons) + ")"


def words_case() -> str:
    """Return SQL that turns the column `reason` into its sentence."""
    cases = " ".join(
        "when '{}' then '{}'".format(reason, text.replace("'", "''")) for reason, text in {**LOST, **UNKNOWN}.items()
    )
    return f"case reason {cases} end"


def note(reason: str, count: int, entity: str) -> str:
    """Return a line for the notes of the report."""
    remedy = REMEDY.get(reason)
    return f"{entity}: {count:,} unknown: {UNKNOWN[reason]}" + (f"; {remedy}" if remedy else "")


def clock_note(who: str, home: str, sender: str, ahead_s: float) -> str:
    """Return a line about clocks that disagree: the broker's by about that, the receivers' by so much at least."""
    its, by = ("the broker's clock is", "") if who == "broker" else ("a receiver's clock is", "at least ")
    way = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"{home}: {its} {by}{abs(ahead_s):.1f} s {way} that of {sender}; what is late is told by these clocks, and as "
        "much may be hidden, or too much"
    )


def file_note(file: str, writer: str, cut: bool, gap_events: int, bad_lines: int) -> str | None:
    """Return what is wrong with a file, or None."""
    wrong = []
    if cut:
        wrong.append("has no last line: cut by a kill, or still being written")
    if gap_events:
        wrong.append(f"misses {gap_events:,} events that the disk refused")
    # The last line of a cut file may be half a line: that says the same.
    if bad_lines > (1 if cut else 0):
        wrong.append(f"has {bad_lines:,} lines that are no JSON")
    elif bad_lines:
        wrong.append("its last line is incomplete and left out")
    return f"{file} ({writer}) {'; '.join(wrong)}" if wrong else None


def exit_code(lost: int, unknown: int, missing_files: int) -> int:
    """0: nothing is lost. 1: something is. 3: nobody can tell, which must not look like "nothing" to a script."""
    return 1 if lost else 3 if unknown or missing_files else 0
