"""Holds the style sheet of the drill's report, with one set of colour names for light, dark and print. Pure.

The contrast of text with its background is at least 4.5 to 1 in each of the three, that of lines and fills 3 to 1.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1a1e23; --muted: #58616c; --grid: #e1e5ea; --edge: #c9d0d8;
  --healthy: #2f855a; --healthy-pale: #d5ecdf; --primary: #2867b2; --backlog: #c2620a; --backlog-pale: #fbe3c8;
  --refused: #b42318; --refused-pale: #fbd9d5; --suspect: #8a6d00; --suspect-pale: #f5e9b8; --outage: #b4231814;
  --outage-ink: #9c1f15; --good: #1f7a4a; --bad: #b42318; --syphon: #6b4fa8; --other: #6b7480; --on-good: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --card: #1d2125; --ink: #e9ecef; --muted: #a3adb8; --grid: #2a3036; --edge: #3d454d;
  --healthy: #6cc495; --healthy-pale: #1e3a2c; --primary: #6fa8e8; --backlog: #f2a14a; --backlog-pale: #4a3217;
  --refused: #f58a80; --refused-pale: #4d211d; --suspect: #e2c44f; --suspect-pale: #40370f; --outage: #f58a801a;
  --outage-ink: #f5a29a; --good: #2c8f5b; --bad: #c23b30; --syphon: #b59be8; --other: #98a2ad; --on-good: #ffffff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1020px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 15px; font-weight: 600; margin: 0 0 14px; color: var(--muted); }
h2 { font-size: 19px; margin: 38px 0 4px; line-height: 1.3; }
p { margin: 4px 0 10px; max-width: 104ch; }
.lead { color: var(--muted); }
.verdict { border-radius: 10px; padding: 18px 22px; color: var(--on-good); background: var(--good); }
.verdict.bad { background: var(--bad); }
.verdict strong { display: block; font-size: 28px; line-height: 1.25; letter-spacing: -0.01em; }
.verdict p { margin: 6px 0 0; max-width: none; }
.verdict code { color: inherit; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 10px;
  margin: 14px 0 0; }
.tile { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 24px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile.bad b { color: var(--refused); }
.tile span { color: var(--muted); font-size: 13px; line-height: 1.35; display: block; }
figure { margin: 8px 0 0; }
.chart { width: 100%; height: auto; display: block; overflow: visible; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 2px 0 0; padding: 0; list-style: none; font-size: 13px;
  color: var(--muted); }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 22px; height: 14px; flex: none; }
svg text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .tick, svg .unit { fill: var(--muted); font-size: 12px; }
svg .label { font-weight: 600; }
svg .inside { font-weight: 600; font-size: 12.5px; paint-order: stroke; stroke: var(--paper); stroke-width: 3.5px;
  stroke-linejoin: round; }
svg .figure { font-variant-numeric: tabular-nums; }
svg .outage { fill: var(--outage); }
svg .outage-word { fill: var(--outage-ink); font-size: 12px; font-weight: 600; }
svg .edge { stroke: var(--outage-ink); stroke-dasharray: 3 3; fill: none; }
svg .axis { stroke: var(--edge); fill: none; }
svg .grid { stroke: var(--grid); fill: none; }
svg .moment { stroke: var(--syphon); stroke-width: 1.5; fill: none; }
svg .moment-word { fill: var(--syphon); font-size: 12px; font-weight: 600; paint-order: stroke; stroke: var(--paper);
  stroke-width: 3px; }
svg .healthy { fill: var(--healthy-pale); } svg .strip { stroke: var(--edge); stroke-width: 0.8; }
svg .primary, svg .app { fill: var(--primary); } svg .backlog { fill: var(--backlog); }
svg .backlog.pale { fill: var(--backlog-pale); } svg .refused { fill: var(--refused); }
svg .refused.pale { fill: var(--refused-pale); } svg .thin-refused { stroke: var(--refused); fill: none; }
svg .suspect { fill: var(--suspect); } svg .suspect.pale { fill: var(--suspect-pale); }
svg .bar-backlog { stroke: var(--backlog); } svg .bar-refused { stroke: var(--refused); }
svg .ping { fill: var(--healthy); } svg .manage, svg .other { fill: var(--other); } svg .syphon { fill: var(--syphon); }
svg .ping-good { fill: var(--healthy); } svg .ping-bad { stroke: var(--refused); stroke-width: 1.7; fill: none; }
svg .area { fill: var(--backlog); opacity: 0.16; }
svg .line-backlog { stroke: var(--backlog); stroke-width: 2; fill: none; }
svg .dot-backlog { fill: var(--backlog); }
svg .line-p50 { stroke: var(--primary); stroke-width: 2; fill: none; }
svg .line-p99 { stroke: var(--backlog); stroke-width: 2; fill: none; stroke-dasharray: 5 4; }
svg .mark-p50 { fill: var(--primary); } svg .mark-p99 { fill: var(--backlog); }
table { border-collapse: collapse; margin: 8px 0; font-size: 14px; width: 100%; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums;
  vertical-align: top; }
th { color: var(--muted); font-weight: 600; font-size: 13px; vertical-align: bottom; }
th.word, td.word { text-align: left; font-variant-numeric: normal; }
td.word.means { color: var(--muted); font-size: 13.5px; }
tr.bad td { color: var(--refused); font-weight: 600; }
.scroll { overflow-x: auto; }
details { margin: 6px 0 0; font-size: 13px; } summary { cursor: pointer; color: var(--muted); }
pre { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 12px 14px; font-size: 12.5px;
  line-height: 1.45; overflow-x: auto; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 0.94em; }
footer { margin-top: 40px; color: var(--muted); font-size: 13px; border-top: 1px solid var(--grid); padding-top: 12px; }
@media print {
  :root { color-scheme: light;
    --paper: #ffffff; --card: #f6f7f9; --ink: #000000; --muted: #3f4650; --grid: #dcdfe3; --edge: #aeb5bd;
    --healthy: #2f855a; --healthy-pale: #d5ecdf; --primary: #2867b2; --backlog: #c2620a; --backlog-pale: #fbe3c8;
    --refused: #b42318; --refused-pale: #fbd9d5; --suspect: #8a6d00; --suspect-pale: #f5e9b8; --outage: #b4231814;
    --outage-ink: #9c1f15; --good: #ffffff; --bad: #ffffff; --on-good: #000000; --syphon: #6b4fa8; --other: #6b7480; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11pt; } main { max-width: none; padding: 0; }
  .verdict { border: 2.5pt solid #1f7a4a; } .verdict.bad { border-color: #b42318; }
  figure, table, .verdict, .tiles { break-inside: avoid; } h2, h2 + p { break-after: avoid; }
  details { display: none; } pre { white-space: pre-wrap; font-size: 8pt; }
  .tiles { grid-template-columns: repeat(4, 1fr); }
  @page { margin: 14mm 12mm; }
}
"""
