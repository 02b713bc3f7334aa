// Messages for later: schedule, cancel, time to live, duplicates.

import assert from "node:assert/strict";
import { test } from "node:test";
import Long from "long";
import { GLANCE, LIMIT, admin, bodies, failure, one, queue, receive, topic, until } from "./namespace.js";

const soon = (ms) => new Date(Date.now() + ms);

test("a scheduled message comes when it is due, not before", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const due = soon(1_500);
  const numbers = await sender.scheduleMessages({ body: "due", messageId: "s" }, due);
  assert.equal(numbers.length, 1);
  assert.ok(Long.isLong(numbers[0]));
  const source = receiver();
  assert.deepEqual(await source.receiveMessages(1, GLANCE), []);
  const [peeked] = await source.peekMessages(1);
  assert.deepEqual([peeked.body, peeked.state], ["due", "scheduled"]);
  assert.equal(String(peeked.sequenceNumber), String(numbers[0]));
  assert.equal(+peeked.scheduledEnqueueTimeUtc, +due);
  const message = await one(source);
  assert.ok(Date.now() >= +due - 50, `${Date.now() - due} ms`);
  assert.deepEqual([message.body, message.messageId, message.state], ["due", "s", "scheduled"]);
  assert.ok(message.enqueuedTimeUtc >= +due - 50);
});

test("many messages are scheduled in one request and come in order", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const numbers = await sender.scheduleMessages(
    [0, 1, 2, 3, 4].map((body) => ({ body })),
    soon(700),
  );
  assert.equal(new Set(numbers.map(String)).size, 5);
  assert.deepEqual(bodies(await receive(receiver(), 5)), [0, 1, 2, 3, 4]);
});

test("a message may be scheduled as it is sent, alone and in a batch", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  const due = soon(1_200);
  await sender.sendMessages({ body: "alone", scheduledEnqueueTimeUtc: due });
  await sender.sendMessages([{ body: "first", scheduledEnqueueTimeUtc: due }, { body: "at once" }]);
  const source = receiver({ receiveMode: "receiveAndDelete" });
  assert.equal((await one(source)).body, "at once");
  assert.equal((await admin().getQueueRuntimeProperties(name)).scheduledMessageCount, 2);
  assert.deepEqual(bodies(await receive(source, 2)), ["alone", "first"]);
});

test("a cancelled message never comes", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  const numbers = await sender.scheduleMessages([{ body: 1 }, { body: 2 }, { body: 3 }], soon(900));
  await sender.cancelScheduledMessages(numbers[1]);
  await sender.cancelScheduledMessages([numbers[2]]);
  assert.equal((await admin().getQueueRuntimeProperties(name)).scheduledMessageCount, 1);
  const source = receiver();
  assert.deepEqual(bodies(await receive(source, 1)), [1]);
  assert.deepEqual(await source.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
});

test("what is not scheduled is not found when it is cancelled", LIMIT, async (t) => {
  const { sender } = await queue(t);
  await assert.rejects(sender.cancelScheduledMessages(Long.fromNumber(4711)), failure("MessageNotFound"));
});

test("a message is scheduled and cancelled on a topic", LIMIT, async (t) => {
  const { sender, receiver } = await topic(t, { all: {} });
  const numbers = await sender.scheduleMessages([{ body: "kept" }, { body: "cancelled" }], soon(800));
  await sender.cancelScheduledMessages(numbers[1]);
  const source = receiver("all");
  assert.deepEqual(bodies(await receive(source, 1)), ["kept"]);
  assert.deepEqual(await source.receiveMessages(1, GLANCE), []);
});

test("a message lives as long as it says, then it is dead-lettered or gone", LIMIT, async (t) => {
  const [dropping, burying] = await Promise.all([queue(t), queue(t, { deadLetteringOnMessageExpiration: true })]);
  for (const { sender } of [dropping, burying]) {
    await sender.sendMessages([{ body: "short", timeToLive: 500 }, { body: "long" }]);
  }
  await new Promise((done) => setTimeout(done, 800));
  for (const { receiver } of [dropping, burying]) {
    assert.deepEqual(bodies(await receive(receiver(), 2, { maxWaitTimeInMs: 300 })), ["long"]);
  }
  const dead = await one(burying.deadLetters());
  assert.deepEqual([dead.body, dead.deadLetterReason], ["short", "TTLExpiredException"]);
  assert.deepEqual(await dropping.deadLetters().receiveMessages(1, GLANCE), []);
});

test("the queue's own time to live holds for all", LIMIT, async (t) => {
  const { name, sender } = await queue(t, { defaultMessageTimeToLive: "PT1S", deadLetteringOnMessageExpiration: true });
  await sender.sendMessages([{ body: 1 }, { body: 2, timeToLive: 60_000 }]);
  await until(
    async () => (await admin().getQueueRuntimeProperties(name)).deadLetterMessageCount === 2,
    "two dead letters",
  );
});

test("a duplicate is confirmed and dropped", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t, {
    requiresDuplicateDetection: true,
    duplicateDetectionHistoryTimeWindow: "PT1M",
  });
  await sender.sendMessages({ body: "first", messageId: "a" });
  await sender.sendMessages({ body: "second", messageId: "a" });
  await sender.sendMessages([
    { body: "third", messageId: "a" },
    { body: "fourth", messageId: "b" },
  ]);
  const source = receiver({ receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(source, 3, { maxWaitTimeInMs: 500 })), ["first", "fourth"]);
});
