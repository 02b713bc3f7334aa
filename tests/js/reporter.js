// One JSON line for each finished test, for tests/broker/test_sdk_js.py.

import { relative } from "node:path";
import { inspect } from "node:util";

export default async function* report(events) {
  for await (const { type, data } of events) {
    if ((type !== "test:pass" && type !== "test:fail") || data.details?.type === "suite") continue;
    const file = data.file === undefined ? "" : relative(import.meta.dirname ?? process.cwd(), data.file);
    const error = type === "test:fail" ? inspect(data.details.error?.cause ?? data.details.error, { depth: 4 }) : null;
    yield `${JSON.stringify({ file, name: data.name, ms: data.details.duration_ms, error })}\n`;
  }
}
