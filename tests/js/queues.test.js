// Queues: send, batches, receive, peek, large messages.

import assert from "node:assert/strict";
import { test } from "node:test";
import Long from "long";
import { GLANCE, LIMIT, bodies, failure, one, queue, receive } from "./namespace.js";

test("a message keeps all its properties", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const when = new Date(1_700_000_000_000);
  const sent = {
    body: { text: "grüße", list: [1, 2.5, null], nested: { deep: true } },
    messageId: "m-1",
    contentType: "application/json",
    correlationId: "c-1",
    partitionKey: "p-1",
    subject: "greeting",
    to: "somebody",
    replyTo: "me",
    replyToSessionId: "s-back",
    timeToLive: 3_600_000,
    applicationProperties: { text: "é", whole: 7, big: 2 ** 40, real: 1.5, yes: true, no: null, when },
  };
  const before = Date.now();
  await sender.sendMessages(sent);
  const source = receiver();
  const message = await one(source);
  for (const [name, value] of Object.entries(sent)) {
    if (name !== "applicationProperties") assert.deepEqual(message[name], value, name);
  }
  assert.deepEqual(
    { ...message.applicationProperties, when: +message.applicationProperties.when },
    {
      ...sent.applicationProperties,
      when: +when,
    },
  );
  assert.equal(message.deliveryCount, 0);
  assert.equal(message.state, "active");
  assert.ok(message.sequenceNumber.gte(1));
  assert.match(message.lockToken, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assert.ok(Math.abs(message.enqueuedTimeUtc - before) < 10_000);
  assert.ok(message.lockedUntilUtc - before > 50_000 && message.lockedUntilUtc - before < 70_000);
  assert.equal(message.expiresAtUtc - message.enqueuedTimeUtc, 3_600_000);
  await source.completeMessage(message);
  assert.deepEqual(await source.receiveMessages(1, GLANCE), []);
});

test("bodies of every kind come back as they were", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const sent = ["text", "", 0, 42, -1.5, true, false, null, [1, "two", { three: 3 }], { a: { b: [] } }];
  await sender.sendMessages(sent.map((body) => ({ body })));
  const got = await receive(receiver({ receiveMode: "receiveAndDelete" }), sent.length);
  assert.deepEqual(bodies(got), sent);
});

test("bytes come back as bytes", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const body = Buffer.from([0, 1, 2, 253, 254, 255]);
  await sender.sendMessages({ body });
  const message = await one(receiver({ skipParsingBodyAsJson: true }));
  assert.ok(Buffer.isBuffer(message.body));
  assert.deepEqual(message.body, body);
});

test("value and sequence bodies of an annotated message", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages([
    { bodyType: "value", body: { a: 1, b: "x" }, properties: { messageId: "v" } },
    { bodyType: "sequence", body: [1, "x", true], header: { priority: 3 }, footer: { sum: "f" } },
    { bodyType: "data", body: "d", messageAnnotations: { "x-mine": "kept" }, applicationProperties: { n: 1 } },
  ]);
  const got = await receive(receiver(), 3);
  assert.deepEqual(
    got.map((message) => message._rawAmqpMessage.bodyType),
    ["value", "sequence", "data"],
  );
  assert.deepEqual(bodies(got), [{ a: 1, b: "x" }, [1, "x", true], "d"]);
  assert.equal(got[0].messageId, "v");
  assert.equal(got[1]._rawAmqpMessage.header.priority, 3);
  assert.deepEqual(got[1]._rawAmqpMessage.footer, { sum: "f" });
  assert.equal(got[2]._rawAmqpMessage.messageAnnotations["x-mine"], "kept");
});

test("an array of messages goes as one batch, in order", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages(Array.from({ length: 200 }, (_, number) => ({ body: number })));
  const got = await receive(receiver({ receiveMode: "receiveAndDelete" }), 200);
  assert.deepEqual(
    bodies(got),
    Array.from({ length: 200 }, (_, number) => number),
  );
});

test("a batch takes messages until it is full, and all of them arrive", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const batch = await sender.createMessageBatch();
  assert.equal(batch.maxSizeInBytes, 262_144);
  const body = Buffer.alloc(10_000, 7);
  let added = 0;
  while (batch.tryAddMessage({ body, messageId: `${added}`, applicationProperties: { added } })) added += 1;
  assert.ok(added > 20 && added === batch.count && batch.sizeInBytes <= batch.maxSizeInBytes);
  await sender.sendMessages(batch);
  const got = await receive(receiver({ receiveMode: "receiveAndDelete", skipParsingBodyAsJson: true }), added);
  assert.deepEqual(
    got.map((message) => message.applicationProperties.added),
    [...Array(added).keys()],
  );
  assert.ok(got.every((message) => message.body.equals(body)));
});

test("a batch may be kept smaller than the link allows", LIMIT, async (t) => {
  const { sender } = await queue(t);
  const batch = await sender.createMessageBatch({ maxSizeInBytes: 1_000 });
  assert.equal(batch.tryAddMessage({ body: Buffer.alloc(500) }), true);
  assert.equal(batch.tryAddMessage({ body: Buffer.alloc(500) }), false);
  await assert.rejects(sender.createMessageBatch({ maxSizeInBytes: 10_000_000 }), /greater than maximum message size/);
});

test("a message as large as the queue takes goes through in many frames", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const body = Buffer.alloc(260_000, "x");
  await sender.sendMessages([]);
  await sender.sendMessages({ body });
  const source = receiver({ skipParsingBodyAsJson: true });
  const message = await one(source);
  assert.ok(message.body.equals(body));
  await source.completeMessage(message);
});

test("a message past the limit is refused by its name, and the sender goes on", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await assert.rejects(sender.sendMessages({ body: Buffer.alloc(300_000) }), failure("MessageSizeExceeded"));
  await sender.sendMessages({ body: "small" });
  assert.equal((await one(receiver())).body, "small");
});

test("a queue may take messages of many megabytes", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t, { maxMessageSizeInKilobytes: 10_240 });
  const body = Buffer.alloc(9_000_000, "y");
  await sender.sendMessages({ body });
  const message = await one(receiver({ skipParsingBodyAsJson: true, receiveMode: "receiveAndDelete" }));
  assert.ok(message.body.equals(body));
});

test("receive and delete leaves nothing", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages([{ body: 1 }, { body: 2 }]);
  assert.deepEqual(bodies(await receive(receiver({ receiveMode: "receiveAndDelete" }), 2)), [1, 2]);
  assert.deepEqual(await receiver().receiveMessages(2, GLANCE), []);
});

test("an empty queue is drained again and again over one link", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const source = receiver();
  for (let round = 0; round < 5; round += 1) {
    const before = Date.now();
    assert.deepEqual(await source.receiveMessages(10, { maxWaitTimeInMs: 50 }), []);
    assert.ok(Date.now() - before < 1_000, "the drain was not answered");
    await sender.sendMessages({ body: round });
    const [message] = await source.receiveMessages(10, { maxWaitTimeInMs: 5_000 });
    assert.equal(message.body, round);
    await source.completeMessage(message);
  }
});

test("a waiting receiver gets what is sent later", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const waiting = receiver().receiveMessages(1, { maxWaitTimeInMs: 10_000 });
  await sender.sendMessages({ body: "late" });
  assert.deepEqual(bodies(await waiting), ["late"]);
});

test("messages are read with an iterator", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages(["a", "b", "c"].map((body) => ({ body })));
  const source = receiver();
  const got = [];
  for await (const message of source.getMessageIterator()) {
    got.push(message.body);
    await source.completeMessage(message);
    if (got.length === 3) break;
  }
  assert.deepEqual(got, ["a", "b", "c"]);
});

test("peek shows messages, locked ones too, and takes nothing", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages([0, 1, 2, 3, 4].map((body) => ({ body })));
  const locking = receiver();
  const locked = await one(locking);
  const source = receiver();
  const first = await source.peekMessages(2);
  assert.deepEqual(bodies(first), [0, 1]);
  assert.equal(first[0].lockToken, undefined);
  assert.deepEqual(bodies(await source.peekMessages(10)), [2, 3, 4]);
  assert.deepEqual(await source.peekMessages(10), []);
  const again = await source.peekMessages(2, { fromSequenceNumber: first[1].sequenceNumber });
  assert.deepEqual(bodies(again), [1, 2]);
  assert.deepEqual(bodies(await source.peekMessages(9, { fromSequenceNumber: Long.ONE })), [0, 1, 2, 3, 4]);
  await locking.completeMessage(locked);
});

test("many senders and receivers share one connection", LIMIT, async (t) => {
  const queues = await Promise.all([queue(t), queue(t), queue(t)]);
  const { client } = queues[0];
  const senders = queues.flatMap(({ name }) => [1, 2, 3].map(() => client.createSender(name)));
  await Promise.all(senders.map((sender, number) => sender.sendMessages({ body: number })));
  const got = await Promise.all(queues.map(({ name }) => receive(client.createReceiver(name), 3)));
  assert.deepEqual(
    got.map((messages) => bodies(messages).sort()),
    [
      [0, 1, 2],
      [3, 4, 5],
      [6, 7, 8],
    ],
  );
});
