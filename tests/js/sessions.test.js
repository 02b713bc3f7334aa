// Sessions: a given one, the next one, lock, state, renewal, settling.

import assert from "node:assert/strict";
import { test } from "node:test";
import Long from "long";
import {
  GLANCE,
  LIMIT,
  RETRY,
  bodies,
  connectionString,
  failure,
  one,
  open,
  queue,
  receive,
  topic,
} from "./namespace.js";

const sessionQueue = (t, options = {}) => queue(t, { requiresSession: true, ...options });
const of = (sessionId, ...all) => all.map((body) => ({ body, sessionId }));
const impatient = (t, timeoutInMs) => open(t, connectionString(), { ...RETRY, maxRetries: 0, timeoutInMs });

test("a given session gives its messages in order and no others", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  await sender.sendMessages([...of("a", 1, 2), ...of("b", 10), ...of("a", 3)]);
  const session = await client.acceptSession(name, "a");
  assert.equal(session.sessionId, "a");
  assert.ok(session.sessionLockedUntilUtc - Date.now() > 50_000);
  const messages = await receive(session, 4, { maxWaitTimeInMs: 500 });
  assert.deepEqual(bodies(messages), [1, 2, 3]);
  assert.ok(messages.every((message) => message.sessionId === "a"));
  for (const message of messages) await session.completeMessage(message);
  assert.deepEqual(await session.receiveMessages(1, GLANCE), []);
  await session.close();
});

test("the next session is one with messages that nobody holds", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  await sender.sendMessages([...of("a", 1), ...of("b", 2)]);
  const first = await client.acceptNextSession(name);
  const second = await client.acceptNextSession(name);
  assert.deepEqual([first.sessionId, second.sessionId].sort(), ["a", "b"]);
  const got = [await one(first), await one(second)];
  assert.deepEqual(bodies(got).sort(), [1, 2]);
});

test("the next session is waited for", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  const waiting = client.acceptNextSession(name);
  await new Promise((done) => setTimeout(done, 300));
  await sender.sendMessages(of("late", "x"));
  const session = await waiting;
  assert.equal(session.sessionId, "late");
  assert.equal((await one(session)).body, "x");
});

test("with no session in time the wait is over", LIMIT, async (t) => {
  const { name } = await sessionQueue(t);
  const before = Date.now();
  await assert.rejects(impatient(t, 1_500).acceptNextSession(name), failure("ServiceTimeout"));
  assert.ok(Date.now() - before < 5_000);
});

test("a session that is held can't be accepted until it is closed", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  await sender.sendMessages(of("held", 1));
  const holder = await client.acceptSession(name, "held");
  const other = impatient(t, 3_000);
  await assert.rejects(other.acceptSession(name, "held"), failure("SessionCannotBeLocked"));
  await holder.close();
  const session = await other.acceptSession(name, "held");
  const message = await one(session);
  assert.deepEqual([message.body, message.deliveryCount], [1, 0]);
});

test("workers take sessions side by side over one connection", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  const waiting = Array.from({ length: 8 }, () => client.acceptNextSession(name));
  const ids = waiting.map((_, number) => `s${number}`);
  await sender.sendMessages(ids.flatMap((id) => of(id, 1, 2, 3)));
  const sessions = await Promise.all(waiting);
  assert.deepEqual(sessions.map((session) => session.sessionId).sort(), ids);
  await Promise.all(
    sessions.map(async (session) => {
      const messages = await receive(session, 3);
      assert.deepEqual(bodies(messages), [1, 2, 3]);
      for (const message of messages) await session.completeMessage(message);
      await session.close();
    }),
  );
  await assert.rejects(impatient(t, 800).acceptNextSession(name), failure("ServiceTimeout"));
});

test("a session may be accepted before it has messages", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  const session = await client.acceptSession(name, "early");
  const waiting = session.receiveMessages(1, { maxWaitTimeInMs: 5_000 });
  await sender.sendMessages(of("early", "bird"));
  assert.deepEqual(bodies(await waiting), ["bird"]);
});

test("the state of a session is kept, changed and taken away", LIMIT, async (t) => {
  const { name, client } = await sessionQueue(t);
  const session = await client.acceptSession(name, "s");
  assert.equal((await session.getSessionState()) ?? null, null);
  await session.setSessionState({ step: 1, text: "ä" });
  assert.deepEqual(await session.getSessionState(), { step: 1, text: "ä" });
  await session.close();
  const again = await client.acceptSession(name, "s");
  assert.deepEqual(await again.getSessionState(), { step: 1, text: "ä" });
  const large = "x".repeat(150_000);
  await again.setSessionState(large);
  assert.equal(await again.getSessionState(), large);
  await again.setSessionState("plain");
  assert.equal(await again.getSessionState(), "plain");
  await again.setSessionState(null);
  assert.equal((await again.getSessionState()) ?? null, null);
});

test("a session's lock is renewed", LIMIT, async (t) => {
  const { name, client } = await sessionQueue(t, { lockDuration: "PT10S" });
  const session = await client.acceptSession(name, "r", { maxAutoLockRenewalDurationInMs: 0 });
  const before = session.sessionLockedUntilUtc;
  await new Promise((done) => setTimeout(done, 700));
  const renewed = await session.renewSessionLock();
  assert.ok(renewed - before > 400 && renewed - before < 5_000, `${renewed - before}`);
  assert.equal(+session.sessionLockedUntilUtc, +renewed);
});

test("a session's lock that ran out is lost, and its message was delivered once more", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t, { lockDuration: "PT2S" });
  await sender.sendMessages(of("x", "slow"));
  const session = await client.acceptSession(name, "x", { maxAutoLockRenewalDurationInMs: 0 });
  const message = await one(session);
  await new Promise((done) => setTimeout(done, 2_600));
  await assert.rejects(session.completeMessage(message), failure("SessionLockLost"));
  await assert.rejects(session.renewSessionLock(), failure("SessionLockLost"));
  const again = await client.acceptSession(name, "x");
  assert.equal((await one(again)).deliveryCount, 1);
});

test("a session's lock is renewed while it is worked on", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t, { lockDuration: "PT5S" });
  await sender.sendMessages(of("long", "work"));
  const session = await client.acceptNextSession(name);
  const message = await one(session);
  await new Promise((done) => setTimeout(done, 6_500));
  await session.completeMessage(message);
  assert.deepEqual(await session.peekMessages(1), []);
});

test("in a session too messages are abandoned, deferred and dead-lettered", LIMIT, async (t) => {
  const { name, client, sender, deadLetters } = await sessionQueue(t);
  await sender.sendMessages(of("s", "abandon", "defer", "dead"));
  const session = await client.acceptSession(name, "s");
  const [abandoned, deferred, dead] = await receive(session, 3);
  await session.deferMessage(deferred, { why: "w" });
  await session.deadLetterMessage(dead, { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  await session.abandonMessage(abandoned, { again: 1 });
  const again = await one(session);
  assert.deepEqual([again.body, again.deliveryCount, again.applicationProperties.again], ["abandon", 1, 1]);
  await session.completeMessage(again);
  const [asked] = await session.receiveDeferredMessages(deferred.sequenceNumber);
  assert.deepEqual([asked.body, asked.applicationProperties.why], ["defer", "w"]);
  await session.completeMessage(asked);
  const buried = await one(deadLetters());
  assert.deepEqual([buried.body, buried.sessionId, buried.deadLetterReason], ["dead", "s", "r"]);
});

test("peek in a session shows that session", LIMIT, async (t) => {
  const { name, client, sender, receiver } = await sessionQueue(t);
  await sender.sendMessages([...of("a", 1), ...of("b", 2), ...of("a", 3)]);
  const session = await client.acceptSession(name, "a");
  assert.deepEqual(bodies(await session.peekMessages(5)), [1, 3]);
  const fromSequenceNumber = Long.ONE; // peeks of one client go on from each other
  assert.deepEqual(bodies(await receiver().peekMessages(5, { fromSequenceNumber })), [1, 2, 3]);
});

test("a session is read with subscribe", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  await sender.sendMessages(of("flow", ...Array(50).keys()));
  const session = await client.acceptNextSession(name);
  const got = [];
  await new Promise((done, fail) => {
    session.subscribe({
      processMessage: async (message) => {
        got.push(message.body);
        if (got.length === 50) done();
      },
      processError: async ({ error }) => fail(error),
    });
  });
  assert.deepEqual(got, [...Array(50).keys()]);
  await session.close();
});

test("scheduled messages keep their session", LIMIT, async (t) => {
  const { name, client, sender } = await sessionQueue(t);
  await sender.scheduleMessages(of("later", "x", "y"), new Date(Date.now() + 600));
  const session = await client.acceptNextSession(name);
  assert.equal(session.sessionId, "later");
  assert.deepEqual(bodies(await receive(session, 2)), ["x", "y"]);
});

test("a session of a subscription", LIMIT, async (t) => {
  const { name, client, sender } = await topic(t, { ordered: { requiresSession: true } });
  await sender.sendMessages(of("s", 1, 2));
  const session = await client.acceptSession(name, "ordered", "s");
  const messages = await receive(session, 2);
  assert.deepEqual(bodies(messages), [1, 2]);
  for (const message of messages) await session.completeMessage(message);
  await session.setSessionState({ done: true });
  assert.deepEqual(await session.getSessionState(), { done: true });
});

test("a message without a session is refused, and so is a receiver without one", LIMIT, async (t) => {
  const { sender, receiver } = await sessionQueue(t);
  await assert.rejects(sender.sendMessages({ body: "lonely" }), (error) => /session/i.test(error.message));
  await assert.rejects(receiver().receiveMessages(1, GLANCE), (error) => /session/i.test(error.message));
});

test("a queue without sessions gives none", LIMIT, async (t) => {
  const { name } = await queue(t);
  await assert.rejects(impatient(t, 2_000).acceptSession(name, "s"), (error) => /session/i.test(error.message));
});
