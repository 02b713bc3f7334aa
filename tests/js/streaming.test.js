// subscribe(): a flow of messages with concurrency, credit and automatic settlement.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LIMIT, admin, queue, until } from "./namespace.js";

async function fill(sender, count, body = (number) => number) {
  let batch = await sender.createMessageBatch();
  for (let number = 0; number < count; number += 1) {
    const message = { body: body(number), applicationProperties: { number } };
    if (!batch.tryAddMessage(message)) {
      await sender.sendMessages(batch);
      batch = await sender.createMessageBatch();
      assert.ok(batch.tryAddMessage(message));
    }
  }
  await sender.sendMessages(batch);
}

function collect(receiver, count, options, work = async () => {}) {
  const seen = [];
  const errors = [];
  let subscription;
  const done = new Promise((resolve) => {
    subscription = receiver.subscribe(
      {
        processMessage: async (message) => {
          await work(message);
          seen.push(message.applicationProperties.number);
          if (seen.length === count) resolve();
        },
        processError: async ({ error, errorSource }) => {
          errors.push(`${errorSource}: ${error}`);
          if (errors.length > 3) resolve();
        },
      },
      options,
    );
  });
  return { seen, errors, done, close: () => subscription.close() };
}

const numbers = (count) => [...Array(count).keys()];
const sorted = (seen) => [...seen].sort((a, b) => a - b);

test("thousands of messages, one at a time, in order, each once", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  const source = receiver();
  const flow = collect(source, 3_000, { maxConcurrentCalls: 1 });
  await fill(sender, 3_000);
  await flow.done;
  assert.deepEqual(flow.errors, []);
  assert.deepEqual(flow.seen, numbers(3_000));
  await until(async () => (await admin().getQueueRuntimeProperties(name)).totalMessageCount === 0, "an empty queue");
  await flow.close();
});

test("thousands of messages with many calls at once", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  await fill(sender, 5_000);
  const flow = collect(receiver(), 5_000, { maxConcurrentCalls: 500 });
  await flow.done;
  assert.deepEqual(flow.errors, []);
  assert.deepEqual(sorted(flow.seen), numbers(5_000));
  await until(async () => (await admin().getQueueRuntimeProperties(name)).totalMessageCount === 0, "an empty queue");
  await flow.close();
});

test("a flow of large messages passes the session window many times", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const text = "x".repeat(100_000);
  await fill(sender, 300, () => text);
  const flow = collect(receiver(), 300, { maxConcurrentCalls: 300 }, async (message) => {
    assert.equal(message.body.length, text.length);
  });
  await flow.done;
  assert.deepEqual(flow.errors, []);
  assert.deepEqual(sorted(flow.seen), numbers(300));
});

test("receive and delete as a flow", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await fill(sender, 2_000);
  const flow = collect(receiver({ receiveMode: "receiveAndDelete" }), 2_000, { maxConcurrentCalls: 100 });
  await flow.done;
  assert.deepEqual(flow.errors, []);
  assert.deepEqual(sorted(flow.seen), numbers(2_000));
});

test("a handler that throws gives the message back", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages({ body: "x" });
  const source = receiver();
  const told = [];
  const count = await new Promise((resolve) => {
    source.subscribe({
      processMessage: async (message) => {
        if (message.deliveryCount < 2) throw new Error("not yet");
        resolve(message.deliveryCount);
      },
      processError: async ({ errorSource }) => told.push(errorSource),
    });
  });
  assert.equal(count, 2);
  assert.deepEqual(told, ["processMessageCallback", "processMessageCallback"]);
  await source.close();
});

test("two flows share a queue", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const seen = [];
  const flows = [1, 2].map(() =>
    collect(receiver(), Infinity, { maxConcurrentCalls: 10 }, async (message) => {
      seen.push(message.applicationProperties.number);
    }),
  );
  await fill(sender, 1_000);
  await until(() => seen.length >= 1_000, "all messages");
  assert.deepEqual(sorted(seen), numbers(1_000));
  assert.ok(flows.every((flow) => flow.seen.length > 0));
  for (const flow of flows) await flow.close();
});

test("a flow that is closed takes no more, and the rest stays", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await fill(sender, 100);
  const source = receiver();
  const flow = collect(source, 10, { maxConcurrentCalls: 1 });
  await flow.done;
  await flow.close();
  const stopped = flow.seen.length;
  await new Promise((done) => setTimeout(done, 200));
  assert.ok(flow.seen.length <= stopped + 1);
  await source.close();
  const rest = collect(receiver(), 100 - flow.seen.length, { maxConcurrentCalls: 1 });
  await rest.done;
  assert.deepEqual(sorted([...flow.seen, ...rest.seen]), numbers(100));
});

test("a slow handler keeps its lock", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t, { lockDuration: "PT5S" });
  await fill(sender, 1);
  const flow = collect(receiver(), 1, {}, () => new Promise((done) => setTimeout(done, 7_000)));
  await flow.done;
  await until(async () => (await admin().getQueueRuntimeProperties(name)).totalMessageCount === 0, "an empty queue");
  assert.deepEqual([flow.errors, flow.seen], [[], [0]]);
});
