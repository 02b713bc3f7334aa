// What a receiver may decide about a message: complete, abandon, defer, dead-letter, renew; and by which lock.

import assert from "node:assert/strict";
import { test } from "node:test";
import Long from "long";
import { GLANCE, LIMIT, admin, bodies, failure, one, open, queue, receive } from "./namespace.js";

test("an abandoned message comes back with changed properties and a higher count", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages({ body: "again", applicationProperties: { kept: 1, changed: "old" } });
  const source = receiver();
  const first = await one(source);
  await source.abandonMessage(first, { changed: "new", added: true });
  const second = await one(source);
  assert.equal(second.deliveryCount, 1);
  assert.equal(String(second.sequenceNumber), String(first.sequenceNumber));
  assert.notEqual(second.lockToken, first.lockToken);
  assert.deepEqual(second.applicationProperties, { kept: 1, changed: "new", added: true });
  await source.completeMessage(second);
});

test("a message that is abandoned too often is dead-lettered", LIMIT, async (t) => {
  const { sender, receiver, deadLetters } = await queue(t, { maxDeliveryCount: 2 });
  await sender.sendMessages({ body: "poison" });
  const source = receiver();
  for (let time = 0; time < 2; time += 1) await source.abandonMessage(await one(source));
  const dead = await one(deadLetters());
  assert.equal(dead.body, "poison");
  assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
});

test("a dead letter carries its reason, description and more, and is settled like any message", LIMIT, async (t) => {
  const { name, sender, receiver, deadLetters } = await queue(t);
  await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
  const source = receiver();
  const [first, second, third] = await receive(source, 3);
  await source.deadLetterMessage(first, { deadLetterReason: "bad", deadLetterErrorDescription: "very", extra: 5 });
  await source.deadLetterMessage(second);
  await source.completeMessage(third);
  const dead = deadLetters();
  const [one_, two] = await receive(dead, 2);
  assert.deepEqual([one_.body, one_.deadLetterReason, one_.deadLetterErrorDescription], [1, "bad", "very"]);
  assert.equal(one_.applicationProperties.extra, 5);
  assert.deepEqual([two.body, two.deadLetterReason], [2, undefined]);
  const { activeMessageCount, deadLetterMessageCount } = await admin().getQueueRuntimeProperties(name);
  assert.deepEqual([activeMessageCount, deadLetterMessageCount], [0, 2]);
  assert.deepEqual(bodies(await deadLetters().peekMessages(5)), [1, 2]);
  await dead.completeMessage(one_);
  await dead.abandonMessage(two);
  const again = await one(dead);
  assert.equal(again.deliveryCount, 0);
  await assert.rejects(dead.deadLetterMessage(again), /are dead letters already/);
});

test("a deferred message is out of sight until it is asked for by number", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages([{ body: "later", applicationProperties: { a: 1 } }, { body: "now" }]);
  const source = receiver();
  const [message, other] = await receive(source, 2);
  await source.deferMessage(message, { why: "not yet" });
  await source.completeMessage(other);
  assert.deepEqual(await source.receiveMessages(1, GLANCE), []);
  const [peeked] = await source.peekMessages(1, { fromSequenceNumber: Long.ONE });
  assert.deepEqual([peeked.body, peeked.state], ["later", "deferred"]);
  const [deferred] = await source.receiveDeferredMessages(message.sequenceNumber);
  assert.deepEqual([deferred.body, deferred.state], ["later", "deferred"]);
  assert.deepEqual(deferred.applicationProperties, { a: 1, why: "not yet" });
  assert.ok(deferred.lockToken);
  await source.completeMessage(deferred);
  assert.deepEqual(await source.peekMessages(1, { fromSequenceNumber: Long.ONE }), []);
});

test("a deferred message is abandoned, deferred and dead-lettered over $management", LIMIT, async (t) => {
  const { sender, receiver, deadLetters } = await queue(t);
  await sender.sendMessages({ body: "d" });
  const source = receiver();
  const message = await one(source);
  const again = async () => (await source.receiveDeferredMessages([message.sequenceNumber]))[0];
  await source.deferMessage(message);
  await source.abandonMessage(await again(), { step: 1 });
  const abandoned = await again();
  assert.equal(abandoned.applicationProperties.step, 1);
  await source.deferMessage(abandoned, { step: 2 });
  const deferred = await again();
  assert.equal(deferred.applicationProperties.step, 2);
  const lockedUntil = await source.renewMessageLock(deferred);
  assert.ok(lockedUntil > Date.now() + 30_000);
  await source.deadLetterMessage(deferred, { deadLetterReason: "r", deadLetterErrorDescription: "d", more: "m" });
  const dead = await one(deadLetters());
  assert.deepEqual([dead.deadLetterReason, dead.deadLetterErrorDescription], ["r", "d"]);
  assert.deepEqual([dead.applicationProperties.step, dead.applicationProperties.more], [2, "m"]);
});

test("deferred messages are received and deleted at once", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages([{ body: 1 }, { body: 2 }]);
  const source = receiver();
  const messages = await receive(source, 2);
  for (const message of messages) await source.deferMessage(message);
  const numbers = messages.map((message) => message.sequenceNumber);
  const taking = receiver({ receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await taking.receiveDeferredMessages(numbers)).sort(), [1, 2]);
  await assert.rejects(taking.receiveDeferredMessages(numbers), failure("MessageNotFound"));
});

test("a number that is not deferred is not found", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages({ body: "active" });
  const source = receiver();
  await assert.rejects(source.receiveDeferredMessages(Long.fromNumber(77)), failure("MessageNotFound"));
  assert.equal((await one(source)).body, "active");
});

test("a lock is renewed", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t, { lockDuration: "PT5S" });
  await sender.sendMessages({ body: "slow" });
  const source = receiver({ maxAutoLockRenewalDurationInMs: 0 });
  const message = await one(source);
  const until = message.lockedUntilUtc;
  await new Promise((done) => setTimeout(done, 1_000));
  const renewed = await source.renewMessageLock(message);
  assert.ok(renewed - until > 500 && renewed - until < 4_000, `${renewed - until}`);
  await source.completeMessage(message);
});

test("a lock that ran out is lost, and the message comes again", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t, { lockDuration: "PT1S" });
  await sender.sendMessages({ body: "slow" });
  const source = receiver({ maxAutoLockRenewalDurationInMs: 0 });
  const message = await one(source);
  const again = await one(receiver({ maxAutoLockRenewalDurationInMs: 0, receiveMode: "receiveAndDelete" }));
  assert.equal(again.deliveryCount, 1);
  await assert.rejects(source.completeMessage(message), failure("MessageLockLost"));
  await assert.rejects(source.renewMessageLock(message), failure("MessageLockLost"));
});

test("locks are renewed while a batch is worked on", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t, { lockDuration: "PT5S" });
  await sender.sendMessages({ body: "long" });
  const source = receiver();
  const message = await one(source);
  const before = message.lockedUntilUtc;
  await new Promise((done) => setTimeout(done, 6_000));
  assert.ok(message.lockedUntilUtc > before);
  await source.completeMessage(message);
  assert.deepEqual(await source.peekMessages(1), []);
});

test("a message is settled once", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  await sender.sendMessages({ body: "once" });
  const source = receiver();
  const message = await one(source);
  await source.completeMessage(message);
  await assert.rejects(source.completeMessage(message));
});

test("a message is settled over another link when its own is closed", LIMIT, async (t) => {
  const { name, client, sender } = await queue(t);
  await sender.sendMessages({ body: "moved" });
  const first = client.createReceiver(name);
  const message = await one(first);
  await first.close();
  const other = open(t).createReceiver(name);
  await other.completeMessage(message);
  assert.deepEqual(await other.peekMessages(1), []);
});

test("hundreds of messages are settled at once", LIMIT, async (t) => {
  const { sender, receiver, deadLetters } = await queue(t);
  await sender.sendMessages(Array.from({ length: 300 }, (_, number) => ({ body: number })));
  const source = receiver();
  const messages = await receive(source, 300);
  assert.equal(messages.length, 300);
  // Kind by kind: rhea merges two neighbours of a burst into one disposition even when their outcomes differ.
  const settle = (rest, how) => Promise.all(messages.filter(({ body }) => body % 3 === rest).map(how));
  await settle(0, (message) => source.completeMessage(message));
  await settle(2, (message) => source.deadLetterMessage(message));
  await settle(1, (message) => source.abandonMessage(message));
  const left = await receive(source, 100);
  assert.deepEqual(
    bodies(left).sort((a, b) => a - b),
    [...Array(100).keys()].map((n) => n * 3 + 1),
  );
  assert.equal((await receive(deadLetters(), 100)).length, 100);
});
